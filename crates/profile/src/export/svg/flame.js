// Draws the flame graph of this file, with zoom and search. Names enter the page only as text.
(function () {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg", HTML = "http://www.w3.org/1999/xhtml";
  const root = document.currentScript ? document.currentScript.closest("svg.flame") : document.documentElement;
  const frames = root.querySelector(".frames");
  const data = JSON.parse(root.querySelector(".data").textContent);
  const count = data.name.length;
  // A graph inside another page leaves that page's address and keys alone.
  const alone = root === document.documentElement;
  const KINDS = { u: "program", k: "kernel", j: "JIT", i: "inlined", c: "command", x: "no symbol" };
  const LEAST = 0.4; // pixels; narrower boxes are not drawn
  const ROW_LEAST = 0.004; // of the width; rows beyond the last one this full are shown only when zoomed

  // Boxes are ordered: parents before children, left to right. parent and end (of all above a box) follow from the levels.
  const parent = new Int32Array(count), end = new Int32Array(count);
  const open = [];
  for (let box = 0; box <= count; box++) {
    while (open.length && (box === count || data.level[open[open.length - 1]] >= data.level[box])) end[open.pop()] = box;
    if (box < count) { parent[box] = open.length ? open[open.length - 1] : -1; open.push(box); }
  }
  for (const side of [data.now, data.was]) {
    if (!side) continue;
    const edges = [0];
    side.left = side.gap.map((gap, box) => {
      const level = data.level[box], left = edges[level] + gap;
      edges[level] = left + side.total[box];
      edges[level + 1] = left;
      return left;
    });
  }

  const name = box => data.names[data.name[box]];
  const share = (side, box) => side.all ? side.total[box] / side.all : 0;
  function percent(share) {
    const p = share * 100;
    return p === 0 ? "0 %" : p < 0.001 ? "< 0.001 %" : p.toFixed(p < 0.1 ? 3 : 2) + " %";
  }
  function amount(weight) {
    if (data.unit !== "ns") return weight.toLocaleString("en") + " " + data.unit;
    return weight < 1e3 ? weight + " ns" : weight < 1e6 ? (weight / 1e3).toFixed(1) + " µs"
      : weight < 1e9 ? (weight / 1e6).toFixed(1) + " ms" : (weight / 1e9).toFixed(2) + " s";
  }
  function describe(box) {
    if (data.diff) {
      const was = share(data.was, box), now = share(data.now, box), change = (now - was) * 100;
      const own = side => side.all ? side.own[box] / side.all : 0;
      return name(box) + "  " + percent(was) + " → " + percent(now) + " (" + (change < 0 ? "−" : "+")
        + Math.abs(change).toFixed(2) + " points), itself " + percent(own(data.was)) + " → " + percent(own(data.now));
    }
    let text = name(box) + "  " + percent(share(data.now, box)) + ", " + amount(data.now.total[box]) + ", itself "
      + percent(data.now.all ? data.now.own[box] / data.now.all : 0);
    if (box > 0) text += ", " + KINDS[data.kind[box]];
    return text;
  }

  // The bar that stays at the top.
  function html(tag, into, text) {
    const element = document.createElementNS(HTML, tag);
    if (text) element.textContent = text;
    into.appendChild(element);
    return element;
  }
  const holder = document.createElementNS(SVG, "foreignObject");
  holder.setAttribute("width", "100%");
  holder.setAttribute("height", data.head - 4);
  const bar = html("div", holder);
  bar.className = "bar";
  const upper = html("div", bar), middle = html("div", bar), lower = html("div", bar);
  html("b", upper, data.title).title = data.title;
  const swap = html("button", upper), reset = html("button", upper, "Reset zoom"), find = html("input", upper);
  const clear = html("button", upper, "Clear");
  const about = html("span", middle, data.subtitle), status = html("span", lower), matched = html("span", lower);
  about.className = "about"; about.title = data.subtitle;
  status.className = "status"; matched.className = "matched";
  matched.setAttribute("aria-live", "polite");
  find.type = "search"; find.placeholder = "Search (regex)"; find.spellcheck = false;
  find.setAttribute("aria-label", "Search frames by a regular expression");
  find.title = "Ctrl-F or /. Lower case matches both cases.";
  reset.title = clear.title = "Esc";

  let zoomed = 0, side = data.now.all || !data.was ? data.now : data.was, pattern = null, current = 0, letter = 0;
  let drawn = new Map(), rows = [], hits = new Uint8Array(count), levels = data.levels, hidden = 0;
  const foot = root.querySelector(".foot"), tail = root.getAttribute("height") - data.head - data.row * data.levels;

  function place(box, x, width, letters, below, into) {
    const g = document.createElementNS(SVG, "g"), rect = document.createElementNS(SVG, "rect");
    const title = document.createElementNS(SVG, "title");
    const level = data.level[box], y = data.row * (data.icicle ? level : levels - 1 - level);
    g.setAttribute("class", data.kind[box] + " s" + data.shade[box] + (hits[box] ? " hit" : "") + (below ? " below" : ""));
    g.setAttribute("tabindex", box === current ? "0" : "-1");
    g.setAttribute("role", "button");
    title.textContent = describe(box);
    rect.setAttribute("x", x.toFixed(2));
    rect.setAttribute("y", y);
    rect.setAttribute("width", (width > 3 ? width - 0.7 : width).toFixed(2));
    rect.setAttribute("height", data.row - 1);
    if (width > 8) rect.setAttribute("rx", 2);
    g.append(title, rect);
    const text = fit(name(box), Math.floor(letters));
    if (text) {
      const label = document.createElementNS(SVG, "text");
      label.setAttribute("x", (x + 4).toFixed(2));
      label.setAttribute("y", y + 13);
      label.textContent = text;
      g.append(label);
    }
    g.box = box;
    drawn.set(box, g);
    (rows[level] = rows[level] || []).push(box);
    into.append(g);
  }
  // As much of a name as fits. East Asian letters count twice.
  function fit(text, letters) {
    let used = 0, at = 0, cut = 0;
    for (const c of text) {
      used += c.codePointAt(0) >= 0x1100 ? 2 : 1;
      if (used > letters) return cut > 1 ? text.slice(0, cut) + "…" : "";
      at += c.length;
      if (used < letters) cut = at;
    }
    return text;
  }
  // As many rows as have visible content: stacks of few samples may be far deeper than all others.
  function stretch(to) {
    if (to === levels) return;
    const grows = (to - levels) * data.row;
    levels = to;
    frames.setAttribute("height", levels * data.row);
    foot.setAttribute("y", data.head + levels * data.row);
    root.setAttribute("height", data.head + levels * data.row + tail);
    if (alone && !data.icicle) window.scrollBy(0, grows);
  }
  function draw() {
    const focused = frames.contains(document.activeElement);
    if (!letter) {
      const probe = document.createElementNS(SVG, "text");
      probe.textContent = "M".repeat(100);
      frames.append(probe);
      letter = probe.getComputedTextLength() / 100 || 7.3;
      probe.remove();
    }
    const width = root.getBoundingClientRect().width * 0.98;
    const into = document.createDocumentFragment();
    drawn = new Map(); rows = [];
    const whole = zoomed === 0 ? side.all : side.total[zoomed], from = side.left[zoomed];
    const seen = [];
    for (let box = zoomed; box < end[zoomed];) {
      const wide = box === zoomed ? width : whole ? side.total[box] / whole * width : 0;
      if (wide < LEAST) { box = end[box]; continue; }
      seen.push([box, whole ? (side.left[box] - from) / whole * width : 0, wide]);
      box++;
    }
    const filled = [];
    for (const [box, , wide] of seen) filled[data.level[box]] = (filled[data.level[box]] || 0) + wide;
    const top = filled.findLastIndex(wide => wide >= ROW_LEAST * width);
    hidden = filled.length - 1 - top;
    stretch(Math.max(top, data.level[zoomed]) + 1);
    for (let box = parent[zoomed]; box >= 0; box = parent[box]) place(box, 0, width, (width - 8) / letter, true, into);
    for (const [box, x, wide] of seen) if (data.level[box] < levels) place(box, x, wide, (wide - 8) / letter, false, into);
    frames.replaceChildren(into);
    if (!drawn.has(current)) { current = zoomed; drawn.get(current).setAttribute("tabindex", "0"); }
    if (focused) drawn.get(current).focus({ preventScroll: true });
    reset.hidden = zoomed === 0;
    swap.hidden = !data.was || !data.was.all || !data.now.all;
    swap.textContent = side === data.now ? "Widths: now" : "Widths: baseline";
    swap.title = "Which side the widths show (b). Frames that are gone have a width only in the baseline.";
    tell(null);
  }
  function tell(box) {
    if (box === null) box = zoomed;
    status.textContent = box === 0 && zoomed === 0 ? "Click a frame to zoom; arrow keys and Enter work too."
      + (hidden > 0 ? " " + hidden + " more rows of narrow stacks show when zoomed." : "") : describe(box);
  }
  // Matches inside a matching frame are not counted again.
  function sum(from) {
    let weight = 0;
    for (let box = from; box < end[from];) {
      if (hits[box]) { weight += side.total[box]; box = end[box]; } else { box++; }
    }
    return weight;
  }
  function report() {
    clear.hidden = !pattern;
    frames.classList.toggle("searched", !!pattern);
    if (!pattern) { matched.textContent = ""; return; }
    const found = hits.reduce((n, hit) => n + hit, 0), all = sum(0);
    matched.textContent = "Matched " + percent(side.all ? all / side.all : 0) + " in " + found.toLocaleString("en")
      + (found === 1 ? " frame" : " frames");
    if (zoomed > 0 && side.total[zoomed]) matched.textContent += ", " + percent(sum(zoomed) / side.total[zoomed]) + " of this view";
  }
  function search(text) {
    pattern = null;
    find.classList.remove("bad");
    if (text) {
      const flags = text === text.toLowerCase() ? "iu" : "u";
      try { pattern = new RegExp(text, flags); } catch (_) {
        // Not a regular expression (yet): search for the literal text.
        find.classList.add("bad");
        pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&"), flags);
      }
    }
    if (find.value !== text) find.value = text;
    const match = pattern && data.names.map(name => pattern.test(name));
    hits = hits.map((_, box) => match && box > 0 && match[data.name[box]] ? 1 : 0);
    for (const [box, g] of drawn) g.classList.toggle("hit", hits[box] === 1);
    report();
  }
  function zoom(box) {
    zoomed = side.total[box] || box === 0 ? box : 0;
    current = zoomed;
    draw();
    report();
  }
  function widths(of) {
    side = of;
    zoom(zoomed);
  }

  // The URL keeps the state, so that a reload or a link shows the same.
  function remember(step) {
    if (!alone) return;
    const state = new URLSearchParams();
    if (zoomed) state.set("z", zoomed);
    if (data.was && side === data.was) state.set("b", 1);
    if (find.value) state.set("s", find.value);
    const hash = "#" + state;
    if (hash === (location.hash || "#")) return;
    try { history[step ? "pushState" : "replaceState"](null, "", hash); } catch (_) { /* not in this viewer */ }
  }
  function restore() {
    const state = new URLSearchParams(alone ? location.hash.slice(1) : ""), box = Number(state.get("z"));
    if (data.was && data.was.all && data.now.all) side = state.get("b") ? data.was : data.now;
    zoom(Number.isInteger(box) && box > 0 && box < count ? box : 0);
    search(state.get("s") || "");
  }

  function go(box) {
    if (box === undefined || !drawn.has(box)) return;
    drawn.get(current).setAttribute("tabindex", "-1");
    current = box;
    drawn.get(box).setAttribute("tabindex", "0");
    drawn.get(box).focus();
  }
  function child(box) {
    let widest;
    for (let at = box + 1; at < end[box]; at = end[at]) {
      if (drawn.has(at) && (widest === undefined || side.total[at] > side.total[widest])) widest = at;
    }
    return widest;
  }
  const target = event => event.target.closest && event.target.closest(".frames > g");
  frames.addEventListener("click", event => {
    const g = target(event);
    if (g) { zoom(g.box); remember(true); }
  });
  frames.addEventListener("mouseover", event => { const g = target(event); tell(g ? g.box : null); });
  frames.addEventListener("mouseleave", () => tell(null));
  frames.addEventListener("focusin", event => { const g = target(event); if (g) tell(g.box); });
  frames.addEventListener("keydown", event => {
    const g = target(event);
    if (!g || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = rows[data.level[g.box]], at = row.indexOf(g.box);
    const up = data.icicle ? "ArrowDown" : "ArrowUp", down = data.icicle ? "ArrowUp" : "ArrowDown";
    switch (event.key) {
      case up: go(child(g.box)); break;
      case down: go(parent[g.box]); break;
      case "ArrowLeft": go(row[at - 1]); break;
      case "ArrowRight": go(row[at + 1]); break;
      case "Home": go(0); break;
      case "Enter": case " ": zoom(g.box); remember(true); break;
      default: return;
    }
    event.preventDefault();
  });
  function escape() {
    if (find.value) search(""); else zoom(0);
    remember(true);
  }
  reset.addEventListener("click", () => { zoom(0); remember(true); });
  clear.addEventListener("click", () => { search(""); remember(false); });
  swap.addEventListener("click", () => { widths(side === data.now ? data.was : data.now); remember(true); });
  find.addEventListener("input", () => { search(find.value); remember(false); });
  (alone ? window : root).addEventListener("keydown", event => {
    const typing = event.target === find, held = event.ctrlKey || event.metaKey;
    if ((held && event.key === "f") || (event.key === "/" && !typing && !held)) {
      event.preventDefault();
      find.focus();
      find.select();
    } else if (event.key === "Escape") {
      event.preventDefault();
      escape();
    } else if (event.key === "b" && !typing && !held && !swap.hidden) {
      swap.click();
    }
  });
  window.addEventListener("popstate", () => { if (alone) restore(); });
  let waiting = 0;
  window.addEventListener("resize", () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => { draw(); report(); });
  });

  root.removeAttribute("viewBox");
  root.setAttribute("width", "100%");
  root.querySelector(".head").remove();
  root.append(holder);
  if (alone) {
    const stay = () => holder.setAttribute("y", window.scrollY);
    window.addEventListener("scroll", stay);
    restore();
    // Scroll to the root first.
    if (!data.icicle && root.getBoundingClientRect().height > window.innerHeight) window.scrollTo(0, 1e7);
    stay();
  } else {
    restore();
  }
})();
