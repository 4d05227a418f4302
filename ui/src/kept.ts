// State that is kept in the URL (after the #, so it is never sent to the server): a link shows the same, and the back button works.
import { useEffect, useState } from "preact/hooks";

export interface InAddress<S> {
  start(): void;
  now(): S;
  // `quietly` for continuous input (wheel, typing): adds no entry to the browser's history.
  update(patch: Partial<S>, quietly?: boolean): void;
  useNow(): S;
}

export function inAddress<S>(first: S, read: (hash: string) => S, write: (state: S) => string, change: (state: S, patch: Partial<S>) => S): InAddress<S> {
  let current = first;
  const listeners = new Set<() => void>();
  const tellAll = () => listeners.forEach(tell => tell());
  return {
    start() {
      current = read(location.hash);
      addEventListener("popstate", () => { current = read(location.hash); tellAll(); });
      addEventListener("hashchange", () => {
        if (location.hash === write(current)) return;
        current = read(location.hash);
        tellAll();
      });
    },
    now: () => current,
    update(patch, quietly = false) {
      const next = change(current, patch);
      const hash = write(next);
      if (hash === write(current)) return;
      current = next;
      if (quietly) history.replaceState(null, "", hash); else history.pushState(null, "", hash);
      tellAll();
    },
    useNow() {
      const [state, set] = useState(current);
      useEffect(() => {
        const tell = () => set(current);
        listeners.add(tell);
        tell();
        return () => { listeners.delete(tell); };
      }, []);
      return state;
    },
  };
}
