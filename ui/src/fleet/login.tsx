// Asks for the token. It is exchanged for a cookie that scripts cannot read, and kept nowhere else.
import { useState } from "preact/hooks";

export function Login({ onDone }: { onDone: () => void }) {
  const [token, setToken] = useState("");
  const [said, setSaid] = useState(new URLSearchParams(location.search).has("refused") ? "The token in the address is not this collector's." : "");
  const [busy, setBusy] = useState(false);
  const enter = async () => {
    setBusy(true);
    try {
      const answer = await fetch("/api/v1/session", { method: "POST", credentials: "same-origin", headers: { authorization: `Bearer ${token.trim()}` } });
      if (answer.ok) { if (location.search) history.replaceState(null, "", location.pathname + location.hash); onDone(); return; }
      setSaid(answer.status === 401 ? "That is not this collector's user token." : `The collector answered with status ${answer.status}.`);
    } catch { setSaid("The collector does not respond, or the token has characters that cannot be sent."); }
    setBusy(false);
  };
  return (
    <main><section class="panel login" aria-labelledby="login-title"><h1 id="login-title">coroner fleet</h1>
      <p>This collector needs its user token. It is in <code>user.token</code> in the collector's directory (<code>coroner fleet serve</code> prints where).</p>
      <form onSubmit={event => { event.preventDefault(); if (token.trim() && !busy) void enter(); }}>
        <label for="token">Token</label><input id="token" type="password" autocomplete="current-password" value={token} onInput={event => setToken(event.currentTarget.value)} autofocus aria-describedby="login-said" />
        <button type="submit" disabled={!token.trim() || busy}>Open</button>
      </form>
      <p id="login-said" class="bad" role="alert">{said}</p></section></main>
  );
}
