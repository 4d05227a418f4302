// A verdict: the problem in one sentence, what to do, and the chain from cause to effects. A click on a step or link opens its
// evidence.
import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import type { Diagnosis, Finding, Link, Named, Proofs, Verdict } from "../api/types.ts";
import { Badge, Evidences, Words } from "../shell/parts.tsx";
import { now, update } from "../state.ts";
import { keyOf, lessSure, PROOFS, stepsOf, type Step } from "./chain.ts";

const CERTAIN = { proven: "Proven: for each link, both ends are about the same thing, the cause came first, and it is large enough.", likely: "Likely: one of the three proofs of a link could not be seen.", possible: "Possible: a suspicion; its proof could not be seen." };

interface Props { verdict: Verdict; diagnosis: Diagnosis; number: number; shown: string; onShow: (key: string) => void; children?: ComponentChildren }

export function VerdictView({ verdict, diagnosis, number, shown, onShow, children }: Props) {
  const steps = useMemo(() => stepsOf(verdict), [verdict]);
  const prefix = `${number}:`;
  const own = shown.startsWith(prefix) ? shown.slice(prefix.length) : "";
  const open = steps.find(step => own === `f|${keyOf(step.finding)}` || (step.link && own === linkKey(step.link))) ? own : `f|${keyOf(verdict.root_cause)}`;
  const sure = lessSure(verdict);
  const findings = new Map(diagnosis.findings.map(finding => [keyOf(finding), finding]));
  return (
    <article class={`verdict ${verdict.severity}`} aria-label={`Verdict ${number}`}>
      <header>
        <p class="marks"><Badge severity={verdict.severity} /><span class={`certainty ${verdict.certainty}`} title={CERTAIN[verdict.certainty]}>{verdict.certainty}</span>{verdict.over && <span class="over">ended {verdict.over.slice(11, 19)}Z</span>}{sure && <span class="muted">{sure}</span>}</p>
        <h2><Words text={verdict.root_cause.title} /></h2>
        {steps.length > 1 && worstOf(steps, findings) !== verdict.root_cause && <p class="story">Worst effect: <Words text={worstOf(steps, findings).title} /></p>}
      </header>
      {children}
      {verdict.remedy && <div class="remedy">
        <h3>What to do</h3>
        <p><Words text={verdict.remedy} copy /></p>
        {verdict.not_fixed && <p class="muted"><b>But:</b> <Words text={verdict.not_fixed} copy /></p>}
        {verdict.risk && <p class="muted"><b>If nothing is done:</b> <Words text={verdict.risk} /></p>}
      </div>}
      <div class="why">
        <ol class="chain" aria-label="From cause to effect">
          {steps.map(step => <StepView key={keyOf(step.finding)} step={step} finding={findings.get(keyOf(step.finding))} open={open} onShow={key => onShow(prefix + key)} context={step.link ? [] : verdict.context} />)}
        </ol>
        <Shown verdict={verdict} steps={steps} findings={findings} open={open} />
      </div>
    </article>
  );
}

const linkKey = (link: Link): string => `l|${keyOf(link.from)}|${keyOf(link.to)}`;
const RANK = { critical: 2, warning: 1, info: 0 };
function worstOf(steps: Step[], findings: Map<string, Finding>): Named {
  let best = steps[0]!;
  const rank = (step: Step) => RANK[findings.get(keyOf(step.finding))?.severity ?? "info"];
  for (const step of steps) if (rank(step) >= rank(best)) best = step;
  return best.finding;
}

function StepView({ step, finding, open, onShow, context }: { step: Step; finding: Finding | undefined; open: string; onShow: (key: string) => void; context: Named[] }) {
  const key = `f|${keyOf(step.finding)}`;
  return (
    <li class={`step depth${Math.min(step.depth, 3)}`}>
      {step.link && <button class={`because ${step.link.certainty}`} aria-expanded={open === linkKey(step.link)} aria-controls="shown" onClick={() => onShow(linkKey(step.link!))}>
        <span class="arrow" aria-hidden="true" /><span><span class="sr">therefore, </span>because <Words text={step.link.because} /></span><span class={`certainty ${step.link.certainty}`}>{step.link.certainty}</span>
      </button>}
      <button class={`finding ${finding?.severity ?? "info"}`} aria-expanded={open === key} aria-controls="shown" onClick={() => onShow(key)}>
        <span class="dot" aria-hidden="true" /><span class="text"><Words text={step.finding.title} /></span><span class="code">{step.finding.code}</span>
      </button>
      {context.map(also => <button key={keyOf(also)} class="finding context" aria-expanded={open === `f|${keyOf(also)}`} onClick={() => onShow(`f|${keyOf(also)}`)}><span class="dot" aria-hidden="true" /><span class="text">Also: <Words text={also.title} /></span><span class="code">{also.code}</span></button>)}
    </li>
  );
}

// The evidence of the open step or link.
function Shown({ verdict, steps, findings, open }: { verdict: Verdict; steps: Step[]; findings: Map<string, Finding>; open: string }) {
  const link = steps.flatMap(step => step.link ? [step.link, ...step.also] : []).find(link => linkKey(link) === open);
  if (link) return (
    <aside class="shown" id="shown" aria-live="polite">
      <p class="kicker">Why one causes the other</p>
      <p class="from"><Words text={link.from.title} /></p>
      <p class="to">→ <Words text={link.to.title} /></p>
      <ProofTable proofs={link.proofs} />
      <Evidences of={link.evidence} />
    </aside>
  );
  const key = open.slice(2), finding = findings.get(key), isRoot = key === keyOf(verdict.root_cause);
  return (
    <aside class="shown" id="shown" aria-live="polite">
      <p class="kicker">{isRoot ? "The root cause" : "What was found"} · {finding?.code ?? key.split("|")[0]}</p>
      {isRoot && verdict.because && <p>Because <Words text={verdict.because} />.</p>}
      {finding?.detail && <p><Words text={finding.detail} /></p>}
      {isRoot && <ProofTable proofs={verdict.proofs} />}
      {finding && <Evidences of={finding.evidence} />}
      {finding && <Jump finding={finding} />}
    </aside>
  );
}

// Links from a finding to the views that show it.
export function Jump({ finding }: { finding: Named }) {
  const { kind, name } = finding.subject;
  const core = kind === "core" && /^\d+$/.test(name) ? name : null;
  const comm = kind === "process" ? /^(.*)\[(\d+)/.exec(name) : null;
  return (
    <p class="jumps">
      {core && <button onClick={() => update({ view: "cores", filters: { ...now().filters, core } })}>See core {core}</button>}
      {comm && <button onClick={() => update({ view: "profile", filters: { ...now().filters, pid: comm[2] } })}>Flame graph of {comm[1]}</button>}
      {finding.code.startsWith("zombie") && <button onClick={() => update({ view: "zombies" })}>See the dead cgroups</button>}
      {kind === "unit" && <button onClick={() => update({ view: "units", shown: `u:${name}` })}>See the unit</button>}
      {!core && kind !== "unit" && <button onClick={() => update({ view: "cores" })}>Show on the time axis</button>}
    </p>
  );
}

function ProofTable({ proofs }: { proofs: Proofs }) {
  return <ul class="proofs">{PROOFS.map(([name, title]) => {
    const proof = proofs[name];
    return <li key={name} class={proof.shown !== undefined ? "yes" : "no"}><span class="mark" aria-hidden="true" /><b>{title}</b><span>{proof.shown !== undefined ? <Words text={proof.shown} /> : <>not seen: <Words text={proof.not_seen ?? "not checked"} /></>}</span></li>;
  })}</ul>;
}
