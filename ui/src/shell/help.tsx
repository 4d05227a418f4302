// The list of keys that `?` shows.
import { useEffect, useRef } from "preact/hooks";

export function Help({ open, keys, note, onClose }: { open: boolean; keys: [string, string][]; note: string; onClose: () => void }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => { if (open) ref.current?.showModal(); else ref.current?.close(); }, [open]);
  return (
    <dialog ref={ref} class="help" aria-labelledby="help-title" onClose={onClose} onClick={event => { if (event.target === ref.current) onClose(); }}>
      <h2 id="help-title">Keys</h2>
      <dl>{keys.map(([key, what]) => <div key={key}><dt>{key.split(/(, | … | \+ )/).map((part, at) => /^(, | … | \+ )$/.test(part) ? part : <kbd key={at}>{part}</kbd>)}</dt><dd>{what}</dd></div>)}</dl>
      <p class="muted">{note}</p>
      <button autofocus onClick={onClose}>Close</button>
    </dialog>
  );
}
