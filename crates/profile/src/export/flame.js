// Zoom and search in a flame graph; stands inside the SVG file.
(function () {
  "use strict";
  var svg = document.documentElement, side = +svg.dataset.side, inner = +svg.dataset.inner;
  var frames = Array.prototype.slice.call(document.querySelectorAll("#frames > g")).map(function (g) {
    return { g: g, left: +g.dataset.l, width: +g.dataset.w, depth: +g.dataset.d, name: g.dataset.n,
             rect: g.querySelector("rect"), text: g.querySelector("text") };
  });
  var details = document.getElementById("details"), matched = document.getElementById("matched");
  var reset = document.getElementById("reset"), find = document.getElementById("search");
  var view = { left: 0, width: 1 }, pattern = null;
  function place(f, left, width) {
    var w = Math.max(0, width * inner), x = side + left * inner;
    f.rect.setAttribute("x", x.toFixed(2)); f.rect.setAttribute("width", w.toFixed(2));
    f.text.setAttribute("x", (x + 3).toFixed(2));
    var letters = Math.floor(w / 6.6);
    f.text.textContent = letters < 3 ? "" : f.name.length <= letters ? f.name : f.name.slice(0, letters - 2) + "..";
  }
  function zoom(target) {
    var whole = !target || target.depth === 0, eps = 1e-7;
    view = whole ? { left: 0, width: 1 } : { left: target.left, width: target.width };
    frames.forEach(function (f) {
      var inside = f.left >= view.left - eps && f.left + f.width <= view.left + view.width + eps;
      var below = f.left <= view.left + eps && f.left + f.width >= view.left + view.width - eps;
      var ancestor = !whole && below && f.depth < target.depth;
      var shown = whole || ancestor || (inside && f.depth >= target.depth);
      f.g.classList.toggle("hidden", !shown);
      f.g.classList.toggle("dim", ancestor);
      if (ancestor) { place(f, 0, 1); } else if (shown) { place(f, (f.left - view.left) / view.width, f.width / view.width); }
    });
    reset.classList.toggle("hidden", whole);
    count();
  }
  function count() {
    if (!pattern) { matched.textContent = ""; return; }
    // Boxes that match inside a box that matches are not counted again.
    var hits = frames.filter(function (f) { return f.g.classList.contains("hit") && !f.g.classList.contains("hidden") && !f.g.classList.contains("dim"); });
    hits.sort(function (a, b) { return a.left - b.left || b.width - a.width; });
    var sum = 0, end = -1;
    hits.forEach(function (f) { if (f.left >= end - 1e-9) { sum += f.width; end = f.left + f.width; } });
    matched.textContent = "Matched: " + (100 * sum / view.width).toFixed(2) + " %";
  }
  function search(text) {
    pattern = null;
    if (text) { try { pattern = new RegExp(text); } catch (e) { pattern = new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")); } }
    frames.forEach(function (f) { f.g.classList.toggle("hit", !!pattern && f.depth > 0 && pattern.test(f.name)); });
    find.textContent = pattern ? "Clear search" : "Search (Ctrl-F)";
    count();
  }
  function ask() {
    if (pattern) { search(""); return; }
    var text = window.prompt("Search for (regular expression):", "");
    if (text) { search(text); }
  }
  frames.forEach(function (f) {
    f.g.addEventListener("click", function () { zoom(f); });
    f.g.addEventListener("mouseover", function () { details.textContent = f.g.querySelector("title").textContent; });
    f.g.addEventListener("mouseout", function () { details.textContent = " "; });
  });
  reset.addEventListener("click", function () { zoom(null); });
  find.addEventListener("click", ask);
  window.addEventListener("keydown", function (e) {
    if ((e.ctrlKey || e.metaKey) && e.key === "f") { e.preventDefault(); ask(); }
    if (e.key === "Escape") { search(""); zoom(null); }
  });
  window.flame = { search: search, zoom: function (name) { zoom(frames.filter(function (f) { return f.name === name; })[0]); } };
})();
