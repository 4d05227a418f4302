// A value that parts of the page share and that changes too often for the URL: the mouse position, the current brush.
import { useEffect, useState } from "preact/hooks";

export interface Cell<T> { get(): T; set(value: T): void; subscribe(tell: () => void): () => void }

export function cell<T>(first: T): Cell<T> {
  let value = first;
  const listeners = new Set<() => void>();
  return {
    get: () => value,
    set(next) { if (next !== value) { value = next; listeners.forEach(tell => tell()); } },
    subscribe(tell) { listeners.add(tell); return () => { listeners.delete(tell); }; },
  };
}

export function useCell<T>(from: Cell<T>): T {
  const [value, set] = useState(from.get());
  useEffect(() => { const tell = () => set(from.get()); tell(); return from.subscribe(tell); }, [from]);
  return value;
}
