"use strict";
// What is packed into the page: "data" is what is shown at first; "module" and each kernel's texts
// are unpacked when somebody looks at them.
const blobs = new Map([...document.querySelectorAll("script[data-id]")].map(e => [e.dataset.id, e]));

async function unpacked(id) {
  const packed = blobs.get(id)?.textContent;
  if (!packed) return null;
  const bytes = Uint8Array.from(atob(packed), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// ---- Small things

const $ = id => document.getElementById(id);
const escaped = text => String(text).replace(/[&<>"]/g,
  c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
// A kernel's name, which folds between what it is made of.
const foldable = name => escaped(name).replace(/[+@,(]/g, sign => sign === "@" ? "<wbr>@" : `${sign}<wbr>`);
const percent = (part, whole) => !whole ? "" : part && part < 0.005 * whole ? "<1 %" : `${Math.round(100 * part / whole)} %`;
const opName = op => op.slice(op.indexOf(".") + 1);
const shortFile = file => file.slice(file.lastIndexOf("/") + 1);

function inUnit(value, units, step) {
  let unit = 0;
  while (unit + 1 < units.length && value >= 0.9995 * step) { value /= step; unit++; }
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return [value === 0 ? "0" : value.toFixed(digits), units[unit]];
}
const duration = us => inUnit(us, ["µs", "ms", "s"], 1000);
function size(bytes) {
  const [number, unit] = inUnit(bytes, ["B", "KiB", "MiB", "GiB"], 1024);
  return [String(Number(number)), unit];
}
const counted = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
const plain = pair => pair.join(" ");
const aligned = ([number, unit]) => `${number}<span class="u">${unit}</span>`;

function counts(ops) {
  const found = new Map();
  for (const op of ops.map(opName)) found.set(op, (found.get(op) ?? 0) + 1);
  return [...found].map(([op, n]) => n > 1 ? `${n} ${op}` : op).join(", ");
}

function linesOf(kernel) {
  return Object.entries(data.lines[kernel.id] ?? {}).map(([file, numbers]) =>
    `${shortFile(file)}:${[...numbers].sort((a, b) => a - b).join(", ")}`).join("; ");
}

// What is no button of the browser's is chosen by the same keys.
function onChoice(element, act) {
  element.addEventListener("click", act);
  if (element.tagName === "BUTTON") return;
  element.addEventListener("keydown", event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act(event);
  });
}

// Draws anew what the focus may be in, and gives it to what takes the place of what had it.
function keepingFocus(container, draw) {
  const all = () => [...container.querySelectorAll("button, [tabindex]")];
  const at = all().indexOf(document.activeElement);
  draw();
  if (at >= 0) all()[at]?.focus({preventScroll: true});
}

// ---- State: the view, the kernel, the texts on both sides

let data, chosen = 0, view = "overview", file = 0, step = 0, split = true;
let sides = ["Loops", "Assembly"];
let texts = null;
const views = ["overview", "kernels", "graph", "stages"];

function show(name) {
  view = name;
  for (const one of views) {
    $(one).hidden = one !== name;
    $(`tab-${one}`).setAttribute("aria-selected", one === name);
  }
  if (name === "kernels") drawKernel();
  if (name === "graph") drawGraph();
  if (name === "stages") drawStages();
  history.replaceState(null, "", name === "kernels" ? `#kernels/${chosen}` : `#${name}`);
}

function choose(number, open = false) {
  if (!data.kernels.length) return;
  chosen = Math.max(0, Math.min(number, data.kernels.length - 1));
  step = 0;
  document.querySelectorAll("[data-kernel]").forEach(element => {
    const is = Number(element.dataset.kernel) === chosen;
    element.classList.toggle("chosen", is);
    if (element.closest("#list")) element.setAttribute("aria-current", is);
    if (is && element.closest("#list")) keepInView(element, $("list"));
  });
  if (open) show("kernels"); else if (view === "kernels") show("kernels");
}

// Without moving the page, as scrollIntoView would.
function keepInView(element, list) {
  const above = element.offsetTop - list.scrollTop, below = above + element.offsetHeight - list.clientHeight;
  if (above < 0) list.scrollTop += above - 8;
  else if (below > 0) list.scrollTop += below + 8;
}

// ---- Overview

function drawOverview() {
  const {time, coverage} = data, total = time.ours_us + time.left_us;
  const measured = data.kernels.filter(k => k.measured).length;
  const how = measured === data.kernels.length ? "measured" : measured ? "partly measured" : "predicted";
  const figure = (number, unit, text) =>
    `<div><strong>${number}<small>${unit}</small></strong><span>${text}</span></div>`;
  $("figures").innerHTML = data.kernels.length ? [
    figure(time.speedup.toFixed(2), "×", `as fast as by XLA alone, ${time.speedup_is_measured ? "measured" : "predicted"}`),
    figure(...duration(time.ours_us), `of a call in ${counted(data.kernels.length, "kernel")} of ours, ${how}`),
    time.left_us ? figure(...duration(time.left_us), "or more of a call in XLA's")
      : figure("nothing", "", "of a call in XLA's"),
    figure(Math.round(100 * time.ours_share), "%", `of the time and ${Math.round(100 * coverage.operations)} % of the operations are ours`),
  ].join("") : figure("XLA", "", "runs all of it");
  const target = data.target === "host" ? "this machine" : data.target;
  $("about").textContent = [data.machine, `${data.cores} cores`, `JAX ${data.versions.jax}`,
    `compiled for ${target} in ${plain(duration(data.compile_seconds * 1e6))}`, data.made].join("  ·  ");

  const bar = data.kernels.slice(0, 60).map((k, n) =>
    `<button data-kernel="${n}" class="${k.us < 0.03 * total ? "thin" : ""}" style="width:${100 * k.us / total}%" tabindex="-1"
      title="${escaped(k.name)}: ${plain(duration(k.us))}, ${percent(k.us, total)}">${k.us < 0.03 * total ? "" : escaped(k.name)}</button>`);
  const shown = data.kernels.slice(0, 60).reduce((sum, k) => sum + k.us, 0);
  const rest = time.ours_us - shown;
  if (rest > 0.002 * total) bar.push(`<span style="width:${100 * rest / total}%" title="other kernels: ${plain(duration(rest))}"></span>`);
  if (time.left_us) bar.push(`<span class="xla" style="width:${100 * time.left_us / total}%" title="XLA: ${plain(duration(time.left_us))} or more">XLA</span>`);
  $("shares").innerHTML = bar.join("");
  $("shares").hidden = !total;
  $("shares").querySelectorAll("button").forEach(b => onChoice(b, () => choose(Number(b.dataset.kernel), true)));
  drawTable();

  // Parts that differ in nothing but their numbers are one.
  const parts = new Map();
  for (const left of data.left) {
    const name = left.part.replace(/#\d+(?=@|$)/, ""), key = `${name}\0${left.reason}`;
    const part = parts.get(key) ?? {name, reason: left.reason, us: 0, ops: [], parts: new Set()};
    part.us += left.us; part.ops.push(left.op); part.parts.add(left.part); parts.set(key, part);
  }
  const groups = [...parts.values()].sort((a, b) => b.us - a.us);
  $("left").innerHTML = `<h2>Stays with XLA${groups.length ? `, with the least time that it can take` : ""}</h2>` + (groups.length ? limited(groups.map(g =>
    `<li><span class="n">${g.us ? aligned(duration(g.us)) : ""}</span><p><code>${escaped(g.name || counts(g.ops))}</code>${g.parts.size > 1 ? ` ${g.parts.size}×` : ""}<br><span class="quiet">${escaped(g.reason)}</span></p></li>`), 8)
    : `<p class="quiet">${data.reasons.length ? "" : "Nothing."}</p>`)
    + data.reasons.map(r => `<p>${escaped(r)}</p>`).join("");
  $("next").hidden = !data.advice.length;
  $("next").innerHTML = `<h2>Next</h2><ul class="plain">${data.advice.map(a => `<li><p>${escaped(a)}</p></li>`).join("")}</ul>`;
  drawRoofline();
  drawMemory();
}

function limited(items, most) {
  const more = items.length - most;
  return `<ul class="plain">${items.slice(0, most).join("")}</ul>` + (more > 0
    ? `<details><summary class="quiet">${more} more</summary><ul class="plain">${items.slice(most).join("")}</ul></details>` : "");
}

const ratioOf = k => k.tuned?.xla_ratio || k.predicted.xla_us / Math.max(k.predicted.ours_us, 1e-9);
const limitOf = k => k.measured ? Math.min(k.measured.share, 1) : -1;
const columns = [
  ["share", "n", k => k.us, k => `<span>${percent(k.us, total())}</span><i style="width:${100 * k.us / (data.kernels[0]?.us || 1)}%"></i>`, "share of a call's time"],
  ["time", "n", k => k.us, k => aligned(duration(k.us)), "of one call of the function"],
  ["calls", "n", k => k.calls, k => k.calls > 1 ? `${k.calls}×` : "", "how often one call runs it"],
  ["XLA / ours", "n", ratioOf, k => `<span class="${ratioOf(k) < 1 ? "slower" : ""}">${k.tuned?.xla_ratio ? "" : "~"}${ratioOf(k).toFixed(2)}×</span>`, "XLA's time divided by ours; ~ is predicted"],
  ["of limit", "n", limitOf, k => k.measured ? percent(limitOf(k), 1) : "–", "the least time this machine allows, divided by the time taken"],
  ["kernel", "name", k => k.name, k => `<code>${foldable(k.name)}</code><div class="ops">${escaped(counts(k.ops))}</div>`, "what it computes, and where"],
  ["your lines", "", linesOf, k => `<code>${escaped(linesOf(k))}</code>`, "which lines of your code it computes"],
];
const total = () => data.time.ours_us + data.time.left_us;
let sorting = [1, -1], allRows = false;

function drawTable() {
  const [column, direction] = sorting, key = columns[column][2];
  const order = data.kernels.map((k, n) => [k, n]).sort(([a], [b]) =>
    direction * (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0));
  if (!order.length) { $("table").outerHTML = `<p class="quiet">None: XLA runs all of it.</p>`; return; }
  const shown = allRows ? order : order.slice(0, 100);
  $("table").innerHTML = `<thead><tr>${columns.map(([title, kind, , , about], n) =>
    `<th class="${kind}" title="${about}" ${n === column ? `aria-sort="${direction < 0 ? "descending" : "ascending"}"` : ""}><button data-column="${n}">${title}</button></th>`).join("")}</tr></thead><tbody>`
    + shown.map(([k, n]) => `<tr tabindex="0" data-kernel="${n}" class="${n === chosen ? "chosen" : ""}">${columns.map(([title, kind, , cell]) =>
      `<td class="${kind}${title === "share" ? " share" : ""}">${cell(k)}</td>`).join("")}</tr>`).join("") + "</tbody>"
    + (shown.length < order.length ? `<tfoot><tr><td colspan="7"><button id="all">${order.length - shown.length} kernels more</button></td></tr></tfoot>` : "");
  $("table").querySelectorAll("[data-column]").forEach(b => b.addEventListener("click", () => {
    const n = Number(b.dataset.column);
    sorting = [n, n === sorting[0] ? -sorting[1] : n < 5 ? -1 : 1];
    keepingFocus($("table"), drawTable);
  }));
  $("table").querySelectorAll("tr[data-kernel]").forEach(r => onChoice(r, () => choose(Number(r.dataset.kernel), true)));
  $("all")?.addEventListener("click", () => { allRows = true; drawTable(); });
}

// ---- Plots

const W = 480, H = 270, M = {l: 58, r: 16, t: 14, b: 38};

function drawRoofline() {
  const {limits} = data;
  const work = k => k.contraction_flops + k.operations;
  const dots = data.kernels.map((k, n) => ({k, n})).filter(({k}) => k.measured && k.bytes && work(k));
  $("roofline").hidden = !limits || !dots.length;
  if ($("roofline").hidden) return;
  for (const dot of dots) {
    dot.x = work(dot.k) / dot.k.bytes;
    dot.y = work(dot.k) / dot.k.measured.us / 1e3;
  }
  const roofs = [...limits.caches.map(c => [plain(size(c.capacity)), c.gb_s]), ["memory", limits.memory_gb_s]];
  const xs = dots.map(d => d.x), ys = dots.map(d => d.y);
  const x0 = Math.floor(Math.log10(Math.min(...xs, 0.1))), x1 = Math.ceil(Math.log10(Math.max(...xs, 100)));
  const y0 = Math.floor(Math.log10(Math.min(...ys, limits.gflops / 100))), y1 = Math.ceil(Math.log10(Math.max(limits.gflops, ...ys) * 1.05));
  const X = v => M.l + (W - M.l - M.r) * (Math.log10(v) - x0) / (x1 - x0);
  const Y = v => H - M.b - (H - M.t - M.b) * (Math.log10(v) - y0) / (y1 - y0);
  const tick = e => e >= 0 ? (10 ** e).toLocaleString("en") : (10 ** e).toFixed(-e);
  const range = (a, b) => Array.from({length: b - a + 1}, (_, i) => a + i);
  const parts = [
    ...range(x0, x1).map(e => `<line class="axis" x1="${X(10 ** e)}" x2="${X(10 ** e)}" y1="${M.t}" y2="${H - M.b}"/><text x="${X(10 ** e)}" y="${H - M.b + 16}" text-anchor="middle">${tick(e)}</text>`),
    ...range(y0, y1).map(e => `<line class="axis" x1="${M.l}" x2="${W - M.r}" y1="${Y(10 ** e)}" y2="${Y(10 ** e)}"/><text x="${M.l - 8}" y="${Y(10 ** e) + 4}" text-anchor="end">${tick(e)}</text>`),
    `<text x="${W - M.r}" y="${H - 6}" text-anchor="end">operations per byte read or written</text>`,
  ];
  // The fastest has its name above its line and the others below, each further down: no two meet.
  const slopes = roofs.sort(([, a], [, b]) => b - a).map(([name, gb], place) => {
    const from = Math.max(10 ** x0, 10 ** y0 / gb), knee = Math.min(10 ** x1, limits.gflops / gb);
    const middle = from * (knee / from) ** (0.6 - 0.35 * place / Math.max(1, roofs.length - 1));
    const angle = -180 / Math.PI * Math.atan2(Y(1) - Y(10), X(10) - X(1));
    return `<path class="roof" d="M${X(from)},${Y(from * gb)}L${X(knee)},${Y(knee * gb)}"/><text text-anchor="middle" transform="translate(${X(middle)},${Y(middle * gb)}) rotate(${angle})" dy="${place ? 12 : -5}">${name}: ${gb.toFixed(0)} GB/s</text>`;
  });
  const ridge = X(Math.max(10 ** x0, limits.gflops / roofs[0][1]));
  parts.push(`<path class="roof" d="M${ridge},${Y(limits.gflops)}H${W - M.r}"/><text x="${ridge}" y="${Y(limits.gflops) - 5}">${limits.gflops.toFixed(0)} GFLOP/s of f32</text>`,
    ...slopes, ...dots.map(({k, n, x, y}) => `<circle class="dot" data-kernel="${n}" cx="${X(x)}" cy="${Y(y)}" r="${3 + 14 * Math.sqrt(k.us / total())}"><title>${escaped(k.name)}: ${y.toFixed(1)} Gop/s, ${x.toFixed(2)} operations per byte, ${percent(limitOf(k), 1)} of the limit</title></circle>`));
  $("roofline").innerHTML = `<h2>Roofline</h2><svg viewBox="0 0 ${W} ${H}" role="img" aria-label="Roofline">${parts.join("")}</svg>
    <figcaption>Billions of operations per second over operations per byte, as large as a kernel's share of the time. Each ran alone, its operands in the caches where they fit.</figcaption>`;
  $("roofline").querySelectorAll("circle").forEach(c => onChoice(c, () => choose(Number(c.dataset.kernel), true)));
}

function drawMemory() {
  const units = data.plan?.units ?? [];
  $("memory").hidden = units.length < 2 || !data.kernels.length;
  if ($("memory").hidden) return;
  const live = units.map(u => u[4]), most = Math.max(...live), base = data.plan.parameter_bytes;
  const X = n => M.l + (W - M.l - M.r) * n / units.length, Y = b => H - M.b - (H - M.t - M.b) * b / most;
  const path = live.map((b, n) => `L${X(n).toFixed(1)},${Y(b).toFixed(1)}H${X(n + 1).toFixed(1)}`).join("");
  const peak = live.indexOf(most);
  const hover = units.length > 2000 ? "" : units.map((u, n) => `<rect x="${X(n)}" y="${M.t}" width="${X(1) - X(0)}" height="${H - M.t - M.b}" fill="transparent"><title>${escaped(unitName(u))}: ${plain(size(live[n]))}</title></rect>`).join("");
  $("memory").innerHTML = `<h2>Memory over a call</h2><svg viewBox="0 0 ${W} ${H}" role="img" aria-label="Memory over a call">
    ${[0, 0.25, 0.5, 0.75, 1].map(f => `<line class="axis" x1="${M.l}" x2="${W - M.r}" y1="${Y(f * most)}" y2="${Y(f * most)}"/><text x="${M.l - 8}" y="${Y(f * most) + 4}" text-anchor="end">${f ? plain(size(f * most)) : 0}</text>`).join("")}
    <path class="area" d="M${X(0)},${Y(0)}${path}L${X(units.length)},${Y(0)}Z"/>
    <rect class="base" x="${X(0)}" width="${X(units.length) - X(0)}" y="${Y(base)}" height="${Y(0) - Y(base)}"/>
    <circle class="dot" cx="${X(peak + 0.5)}" cy="${Y(most)}" r="4"/>${hover}
    <text x="${W - M.r}" y="${H - 18}" text-anchor="end">kernels and operations in order</text></svg>
    <figcaption>Values from where they are made to where they are read last; grey are the arguments. ${plain(size(most))} at most, in <code>${escaped(unitName(units[peak]))}</code>; XLA needs less where results take over memory.</figcaption>`;
}

// ---- Kernels

const steps = ["Tensors", "Schedule", "Loops", "Proved", "LLVM IR", "Assembly"];

function drawList() {
  $("list").innerHTML = data.kernels.map((k, n) =>
    `<li><button data-kernel="${n}"><code>${foldable(k.name)}</code><span class="n">${percent(k.us, total())}</span></button></li>`).join("");
  $("list").querySelectorAll("button").forEach(b => b.addEventListener("click", () => choose(Number(b.dataset.kernel), true)));
}

async function drawKernel() {
  const k = data.kernels[chosen];
  if (!k) { $("kernel").innerHTML = `<p class="card">There are no kernels of ours: XLA runs all of it.</p>`; return; }
  texts = await unpacked(k.id);
  if (data.kernels[chosen] !== k) return;  // another one was chosen meanwhile
  const known = [
    ["computes", escaped(counts(k.ops))],
    ["takes, gives", `<code>${escaped(k.operands.join(", ") || "nothing")} → ${escaped(k.results.join(", "))}</code>`],
    ["work", [`${plain(size(k.bytes))} read and written`, k.contraction_flops && `${k.contraction_flops.toLocaleString("en")} flops of products`,
      k.operations && `${k.operations.toLocaleString("en")} simple operations`].filter(Boolean).join(", ")],
    ["time", `${plain(duration(k.us))} of a call${k.calls > 1 ? ` in ${k.calls} runs` : ""}, ${percent(k.us, total())}`
      + (k.measured ? `; ${percent(limitOf(k), 1)} of what this machine can do` : k.data_dependent ? "; not measured: it depends on the values of its operands" : "")],
    ["predicted", `${plain(duration(k.predicted.ours_us))}, XLA ${plain(duration(k.predicted.xla_us))}: ${escaped(k.predicted.reason)}`],
    k.tuned && ["tuned", `${k.tuned.speedup > 1 ? `${k.tuned.speedup.toFixed(2)}× as fast as the default schedule` : "no schedule was faster than the default"}${k.tuned.xla_ratio ? `; XLA takes ${k.tuned.xla_ratio.toFixed(2)}× as long as ours` : ""}`],
    ["templates", k.nests.map(nest => `<code>${nest.steps ? `by hand(${escaped(nest.steps.join("; "))})` : `${escaped(nest.template)}(${Object.entries(nest.parameters).map(([a, b]) => `${escaped(a)}=${b}`).join(", ")})`}</code>: ${escaped(nest.text)}`).join("<br>")],
    k.proof && ["proof", escaped(k.proof)],
    ...k.resources.map(r => ["resources", escaped(r)]),
    ["id", `<code>${k.id}</code>`],
  ].filter(Boolean);
  $("kernel").innerHTML = `<div class="head"><div class="card"><h2>${escaped(k.name)}</h2><dl class="facts">${known.map(([a, b]) => `<dt>${a}</dt><dd>${b}</dd>`).join("")}</dl></div>
    <div class="card text"><div class="tabs"><h3>Your code</h3></div>${source(k)}</div></div>${tuning(k)}
    <div class="panes ${split ? "" : "one"}">${[0, 1].slice(0, split ? 2 : 1).map(side => `<div class="card text" data-side="${side}"></div>`).join("")}</div>`;
  drawPanes();
}

// What tuning tried: each trial's speed, and the best so far.
function tuning(k) {
  const tried = data.attempts[k.id];
  if (!tried) return "";
  const w = 1000, h = 170, m = {l: 58, r: 16, t: 14, b: 30};
  const most = Math.max(1.05, ...tried.map(t => t[1])) * 1.04, last = Math.max(1, tried.at(-1)[0]);
  const X = n => m.l + (w - m.l - m.r) * n / last, Y = v => h - m.b - (h - m.t - m.b) * v / most;
  let best = 0, path = "";
  for (const [n, speedup] of tried) {
    if (speedup <= best) continue;
    path += path ? `H${X(n)}V${Y(speedup)}` : `M${X(n)},${Y(speedup)}`;
    best = speedup;
  }
  const failed = tried.filter(t => !t[1]).length;
  const levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 8].filter(v => v < most && (most < 4 || Number.isInteger(v)));
  return `<figure class="card trials"><h2>Tuning</h2><svg viewBox="0 0 ${w} ${h}" role="img" aria-label="Trials">
    ${levels.map(v => `<line class="axis" x1="${m.l}" x2="${w - m.r}" y1="${Y(v)}" y2="${Y(v)}"/><text x="${m.l - 8}" y="${Y(v) + 4}" text-anchor="end">${v}×</text>`).join("")}
    <path class="roof" d="${path}H${X(last)}"/>
    ${tried.map(([n, speedup, what]) => `<circle class="${speedup ? "dot" : "base"}" cx="${X(n)}" cy="${Y(speedup)}" r="3.5"><title>trial ${n}: ${speedup ? `${speedup.toFixed(2)}× as fast as the default, ` : ""}${escaped(what)}</title></circle>`).join("")}
    <text x="${w - m.r}" y="${h - 6}" text-anchor="end">${counted(tried.length, "trial")}</text></svg>
    <figcaption>How many times as fast as the default schedule each trial was, and the best so far: ${best.toFixed(2)}×.${failed ? ` ${counted(failed, "trial")} failed, grey at the bottom.` : ""}</figcaption></figure>`;
}

function source(k) {
  const files = Object.entries(data.lines[k.id] ?? {});
  const parts = files.map(([file, numbers]) => {
    const wanted = new Set(numbers.flatMap(n => [n - 2, n - 1, n, n + 1, n + 2]));
    const lines = Object.entries(data.sources[file] ?? {}).filter(([n]) => wanted.has(Number(n)));
    let last = 0;
    return `<div class="c">${escaped(file)}</div>` + lines.map(([n, text]) => {
      const gap = last && Number(n) > last + 1 ? `<div class="c">     ⋮</div>` : "";
      last = Number(n);
      return `${gap}<div class="${numbers.includes(last) ? "on" : ""}"><b>${n}</b>${lit(text, "py")}</div>`;
    }).join("");
  });
  return `<pre>${parts.join("") || `<div class="c">It is not known which lines it comes from.</div>`}</pre>`;
}

function drawPanes() {
  for (const pane of document.querySelectorAll("[data-side]")) {
    const side = Number(pane.dataset.side), there = steps.filter(s => texts && s in texts);
    const title = there.includes(sides[side]) ? sides[side] : there[0];
    if (!title) { pane.innerHTML = `<pre><div class="c">Its texts are not in this page, which has those of the costliest kernels: HLO_MLC_DUMP=folder has all.</div></pre>`; continue; }
    const tabs = `<div role="tablist" aria-label="Texts">${there.map(s => `<button role="tab" aria-selected="${s === title}">${s}</button>`).join("")}</div>`;
    const extra = side === 0 ? `<button class="split" title="One text or two (s)">${split ? "one" : "two"}</button>` : "";
    const body = title === "Schedule" ? schedule(texts[title])
      : `<pre>${listing(texts[title], title)}</pre>`;
    pane.innerHTML = `<div class="tabs">${tabs}${extra}</div>${body}`;
    const changed = pane.querySelector("pre .new");
    if (changed) pane.querySelector("pre").scrollTop = changed.offsetTop - pane.querySelector("pre").offsetTop - 60;
    pane.querySelectorAll(".tabs button:not(.split)").forEach((b, n) => b.addEventListener("click", () => { sides[side] = there[n]; keepingFocus(pane, drawPanes); }));
    pane.querySelector(".split")?.addEventListener("click", toggleSplit);
    pane.querySelectorAll(".steps button").forEach(b => b.addEventListener("click", () => keepingFocus(pane, () => walk(Number(b.dataset.by)))));
  }
}

async function toggleSplit() {
  const had = document.activeElement?.matches(".split");
  split = !split;
  await drawKernel();
  if (had) document.querySelector("button.split").focus();
}
function walk(by) { step += by; drawPanes(); }

// A schedule's text: the template that was chosen, why others were not, and the loops after each
// of its steps, each a paragraph that begins with the step.
function schedule(text) {
  const walked = [], notes = [];
  for (const paragraph of text.trim().split("\n\n")) {
    const [first, second] = paragraph.split("\n", 2);
    if (second?.startsWith("kernel ")) walked.push([first, paragraph.slice(first.length + 1)]);
    else if (first.startsWith("kernel ") && walked.length) walked.at(-1)[1] += `\n\n${paragraph}`;
    else if (first.startsWith("nest ")) { notes.push(paragraph); }
    else notes.push(paragraph);
  }
  if (!walked.length) return `<pre>${listing(notes.join("\n"), "Schedule")}</pre>`;
  step = Math.max(0, Math.min(step, walked.length - 1));
  const before = new Set(step ? walked[step - 1][1].split("\n") : walked[step][1].split("\n"));
  const [name, loops] = walked[step];
  return `<div class="steps"><button data-by="-1" title="Step back (p)">‹</button><button data-by="1" title="Next step (n)">›</button><span class="quiet">${step + 1} of ${walked.length}</span><code>${escaped(name)}</code></div>`
    + `<pre>${loops.split("\n").map(line => `<div class="${before.has(line) ? "" : "new"}">${lit(line, "Loops")}</div>`).join("")}<div></div>${notes.map(n => `<div class="c">${escaped(n)}</div>`).join("")}</pre>`;
}

// ---- Texts

const words = {
  "py": /^(def|return|for|in|if|else|elif|lambda|import|from|as|class|with|and|or|not|None|True|False|while|yield)$/,
  "Loops": /^(for|in|if|else|kernel|nest|call|result|unroll|vectorize|parallel|prefetch|while|allocate|buffer|let|store|guard|shared|operand|scratch)$/,
  "LLVM IR": /^(define|declare|ret|br|label|phi|select|load|store|getelementptr|call|icmp|fcmp|fadd|fmul|fsub|fdiv|add|sub|mul|internal|void|ptr|float|double|noalias|nocapture|align|inbounds|nuw|nsw|alwaysinline|attributes)$/,
};
const token = /([;#].*$)|([A-Za-z_.$][\w.$]*)|(-?\b\d[\w.+-]*)|([^A-Za-z_.$\d;#]+)/g;

function lit(line, kind) {
  const known = words[kind] ?? words.Loops;
  if (kind === "Assembly") line = line.replace(/^\t/, "        ").replace(/\t/g, " ");
  let first = true;
  return line.replace(token, (all, comment, word, number) => {
    if (comment && kind !== "Loops") return `<span class="c">${escaped(comment)}</span>`;
    if (word && (kind === "Assembly" ? first && /^\s/.test(line) && !word.startsWith(".") : known.test(word))) {
      first = false;
      return `<span class="k">${word}</span>`;
    }
    if (word) first = false;
    return number ? `<span class="d">${number}</span>` : escaped(all);
  });
}

function listing(text, kind) {
  return text.replace(/\n+$/, "").split("\n").map(line => `<div>${lit(line, kind)}</div>`).join("");
}

// ---- Graph

const unitName = u => u[0] ? names().get(u[0]) ?? u[0] : opName(u[1]);
let nameById;
const names = () => nameById ??= new Map(data.kernels.map(k => [k.id, k.name]));
const MOST_DRAWN = 160, MOST_NEAR = 60, MOST_ROWS_PAST = 3, MOST_ROWS = 400;
let graphDrawn = false, unit = -1;

function drawGraph() {
  if (graphDrawn) return;
  graphDrawn = true;
  if (!data.plan) { $("drawing").innerHTML = `<p class="quiet">Nothing was planned: XLA runs all of it.</p>`; return; }
  // Where not all can be drawn, it is around the costliest kernel, or else where the program begins.
  const {units, operations} = data.plan, costliest = data.kernels[0]?.id;
  const first = operations.find(([, , , at]) => at >= 0 && units[at][2].length)?.[3] ?? 0;
  drawUnits(Math.max(0, costliest ? units.findIndex(u => u[0] === costliest) : first));
  drawOperations();
}

// The units that are drawn, in their order: all, or where they are too many those that are the
// fewest steps from one of them, along what each reads and who reads it.
function drawnAround(centre) {
  const units = data.plan.units;
  if (units.length <= MOST_DRAWN) return units.map((_, n) => n);
  const users = units.map(() => []);
  units.forEach((u, n) => u[2].forEach(r => { if (r >= 0) users[r].push(n); }));
  const near = new Set([centre]);
  for (const n of near) {  // goes on to those that are added meanwhile
    for (const next of [...units[n][2], ...users[n]]) if (next >= 0 && near.size < MOST_NEAR) near.add(next);
  }
  return [...near].sort((a, b) => a - b);
}

// Units in rows below those that they read. A line past a row has a bend in it, which takes its place
// among the units there, so that it goes around boxes. Those past many rows, as from a model's layers
// to their gradients, go straight behind all boxes, faint until one of their ends is chosen: with
// bends they would be most of the picture.
function layered(units, w, gap) {
  const row = units.map(() => 0), users = units.map(() => []);
  units.forEach(([, , reads], n) => reads.forEach(r => {
    if (r >= 0 && r < n) { row[n] = Math.max(row[n], row[r] + 1); users[r].push(n); }
  }));
  // What is read late stands late: right above who reads it first.
  for (let n = units.length - 1; n >= 0; n--) {
    if (users[n].length) row[n] = Math.min(...users[n].map(v => row[v])) - 1;
  }
  const spots = units.map((_, n) => ({unit: n, row: row[n], half: (w + gap) / 2, above: [], below: []}));
  const lines = [];
  units.forEach(([, , reads], n) => reads.filter(r => r >= 0).forEach(r => {
    const line = [spots[r]];
    if (row[n] - row[r] > MOST_ROWS_PAST) { lines.push([spots[r], spots[n]]); return; }
    for (let at = row[r] + 1; at < row[n]; at++) {
      const bend = {unit: -1, row: at, half: 8, above: [], below: []};
      spots.push(bend);
      line.push(bend);
    }
    line.push(spots[n]);
    for (let i = 1; i < line.length; i++) { line[i].above.push(line[i - 1]); line[i - 1].below.push(line[i]); }
    lines.push(line);
  }));
  const rows = [];
  for (const spot of spots) (rows[spot.row] ??= []).push(spot);
  for (const one of rows) spread(one, one.map((_, i) => i));
  for (let sweep = 0; sweep < 16; sweep++) {
    const down = sweep % 2 === 0;
    for (const one of down ? rows : [...rows].reverse()) {
      const wish = new Map(one.map(spot => {
        const near = down ? spot.above : spot.below;
        return [spot, near.length ? near.reduce((sum, v) => sum + v.x, 0) / near.length : spot.x];
      }));
      one.sort((a, b) => wish.get(a) - wish.get(b));
      spread(one, one.map(spot => wish.get(spot)));
    }
  }
  return {spots, lines, rows};
}

// Places the spots of a row as near as may be to where they wish to be, in their order.
function spread(row, wishes) {
  let edge = -Infinity, error = 0;
  row.forEach((spot, i) => {
    spot.x = Math.max(wishes[i], edge + spot.half);
    edge = spot.x + spot.half;
    error += wishes[i] - spot.x;
  });
  for (const spot of row) spot.x += error / row.length;
}

function drawUnits(centre) {
  if (!data.plan.units.length) { $("drawing").innerHTML = `<p class="quiet">Nothing is computed.</p>`; return; }
  const drawn = drawnAround(centre), place = new Map(drawn.map((n, at) => [n, at]));
  const units = drawn.map(n => data.plan.units[n]).map(([id, op, reads, ...rest]) => [id, op, reads.map(r => place.get(r) ?? -1), ...rest]);
  const all = data.plan.units.length, w = 188, h = 40, gap = 18, step = 74;
  const {spots, lines, rows} = layered(units, w, gap);
  const left = Math.min(...spots.map(s => s.x - s.half)), width = Math.max(...spots.map(s => s.x + s.half)) - left;
  const X = s => s.x - left, Y = s => 16 + s.row * step, height = rows.length * step;
  const share = new Map(data.kernels.map(k => [k.id, k]));
  const curve = line => line.slice(1).map((to, i) => {
    const from = line[i], y0 = Y(from) + h, y1 = Y(to), middle = (y0 + y1) / 2;
    const past = i + 2 < line.length ? `V${y1 + h}` : "";
    return `C${X(from)},${middle} ${X(to)},${middle} ${X(to)},${y1}${past}`;
  }).join("");
  const edges = lines.map(line => {
    const from = line[0], to = line.at(-1);
    const far = line.length === 2 && to.row - from.row > 1 ? ` class="far"` : "";
    return `<path${far} data-from="${drawn[from.unit]}" data-to="${drawn[to.unit]}" d="M${X(from)},${Y(from) + h}${curve(line)}"><title>${escaped(units[from.unit][3].join(", "))}</title></path>`;
  });
  const fit = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
  const boxes = spots.filter(s => s.unit >= 0).map(s => {
    const u = units[s.unit], k = share.get(u[0]), x = X(s), y = Y(s);
    const what = `${k ? plain(duration(k.us / k.calls)) : "XLA"} · ${u[3].length > 1 ? `${u[3].length} results` : u[3][0] ?? ""}`;
    const isCentre = drawn.length < all && drawn[s.unit] === centre;
    return `<g class="${u[0] ? "" : "xla"}${isCentre ? " middle" : ""}" data-unit="${drawn[s.unit]}" role="button" aria-label="${escaped(`${unitName(u)}, ${what}`)}" tabindex="0"><rect x="${x - w / 2}" y="${y}" width="${w}" height="${h}"><title>${escaped(unitName(u))} → ${escaped(u[3].join(", "))}</title></rect>
      <text x="${x}" y="${y + 17}" text-anchor="middle">${escaped(fit(unitName(u), 27))}</text><text class="quiet" x="${x}" y="${y + 32}" text-anchor="middle">${escaped(fit(what, 30))}</text></g>`;
  });
  $("around").hidden = drawn.length === all;
  $("around").innerHTML = `${drawn.length} of ${all.toLocaleString("en")} kernels and operations of XLA's: those around <code>${escaped(unitName(data.plan.units[centre]))}</code>. What is chosen here, or in the list below, is the next one in the middle.`;
  $("drawing").innerHTML = `<svg width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">${edges.join("")}${boxes.join("")}</svg>`;
  $("drawing").querySelectorAll("g").forEach(g => {
    onChoice(g, () => chooseUnit(Number(g.dataset.unit)));
    g.addEventListener("pointerenter", () => light(Number(g.dataset.unit)));
    g.addEventListener("pointerleave", () => light(unit));
    g.addEventListener("dblclick", () => {
      const at = data.kernels.findIndex(k => k.id === data.plan.units[Number(g.dataset.unit)][0]);
      if (at >= 0) choose(at, true);
    });
  });
  // In the middle of the view stands the middle of the drawing, or what it is drawn around.
  const middle = drawn.length < all ? spots[place.get(centre)] : null;
  $("drawing").scrollLeft = (middle ? X(middle) : width / 2) - $("drawing").clientWidth / 2;
  $("drawing").scrollTop = middle ? Y(middle) - $("drawing").clientHeight / 2 : 0;
}

function chooseUnit(number) {
  unit = unit === number ? -1 : number;
  if (unit >= 0 && data.plan.units.length > MOST_DRAWN) {
    const focused = $("drawing").contains(document.activeElement);
    drawUnits(unit);
    if (focused) $("drawing").querySelector(`[data-unit="${unit}"]`).focus({preventScroll: true});
  }
  $("drawing").querySelectorAll("g").forEach(g => g.classList.toggle("chosen", Number(g.dataset.unit) === unit));
  light(unit);
  drawOperations();
}

function light(number) {
  $("drawing").querySelectorAll("path").forEach(p => p.classList.toggle("lit", number >= 0
    && (Number(p.dataset.from) === number || Number(p.dataset.to) === number)));
}

function drawOperations() {
  if (!data.plan) return;
  const {operations, units, locations, reasons} = data.plan;
  const wanted = $("filter").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  let count = 0;
  for (const [op, type, where, at, why] of operations) {
    if (unit >= 0 && at !== unit) continue;
    const owner = at < 0 ? "" : units[at][0] ? unitName(units[at]) : "XLA";
    const line = (/^(\S+:\d+)/.exec(locations[where])?.[1] ?? "").split("/").pop();
    const reason = why >= 0 ? reasons[why] : "";
    const all = `${op} ${type} ${line} ${owner} ${reason}`.toLowerCase();
    if (!wanted.every(word => all.includes(word))) continue;
    if (count++ < MOST_ROWS) found.push(`<tr ${at < 0 ? "" : `data-at="${at}" tabindex="0"`}><td><code>${escaped(opName(op))}</code></td><td><code>${foldable(type)}</code></td><td><code>${escaped(line)}</code></td><td><code class="${owner === "XLA" ? "quiet" : ""}">${foldable(owner)}</code></td><td class="quiet">${escaped(reason)}</td></tr>`);
  }
  $("matches").textContent = `${count.toLocaleString("en")} of ${operations.length.toLocaleString("en")}${unit >= 0 ? `, in ${unitName(units[unit])}` : ""}${count > MOST_ROWS ? `; the first ${MOST_ROWS} are shown` : ""}`;
  $("operations").innerHTML = `<thead><tr><th>operation</th><th>result</th><th>your line</th><th>runs in</th><th>why it does not join what comes before it, or stays with XLA</th></tr></thead><tbody>${found.join("")}</tbody>`;
  $("operations").querySelectorAll("[data-at]").forEach(row => onChoice(row, () => chooseUnit(Number(row.dataset.at))));
}

// ---- Compilation

const about = {"00-stablehlo.mlir": "StableHLO, as JAX gave it", "10-graph.txt": "the graph",
  "20-simplified.txt": "simplified", "30-plan.txt": "planned: what becomes a kernel",
  "99-stablehlo.mlir": "StableHLO, as XLA gets it"};
let moduleTexts;

async function drawStages() {
  moduleTexts ??= await unpacked("module") ?? {};
  const files = Object.keys(moduleTexts);
  file = Math.max(0, Math.min(file, files.length - 1));
  $("files").innerHTML = files.map((f, n) => `<li><button aria-current="${n === file}"><code>${about[f] ?? f}</code></button></li>`).join("");
  $("files").querySelectorAll("button").forEach((b, n) => b.addEventListener("click", () => { file = n; keepingFocus($("files"), drawStages); }));
  const kinds = new Map();
  for (const [name, ms] of data.stages) {
    const kind = name.split(" ")[0];
    kinds.set(kind, (kinds.get(kind) ?? 0) + ms);
  }
  const all = [...kinds.values()].reduce((a, b) => a + b, 0);
  $("times").innerHTML = `<h2>Where compiling takes its time, with an empty cache</h2><table>${[...kinds].map(([kind, ms]) =>
    `<tr><td>${escaped(kind)}</td><td class="n share">${aligned(duration(ms * 1e3))}<i style="width:${100 * ms / all}%"></i></td></tr>`).join("")}</table>`;
  if (!files.length) { $("stage").innerHTML = `<pre><div class="c">Nothing was compiled.</div></pre>`; return; }
  const lines = moduleTexts[files[file]].replace(/\n+$/, "").split("\n");
  $("stage").innerHTML = `<div class="tabs"><h3>${about[files[file]] ?? files[file]}</h3><span class="grow"></span><span class="quiet">${lines.length.toLocaleString("en")} lines</span></div><pre>${lines.map(line => `<div>${lit(line, "LLVM IR")}</div>`).join("")}</pre>`;
}

// ---- Keys, and the beginning

function turn(side, by) {
  const there = steps.filter(s => texts && s in texts);
  const at = there.indexOf(sides[side]);
  sides[side] = there[(at + by + there.length) % there.length];
  drawPanes();
}

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  if (event.target.tagName === "INPUT") { if (event.key === "Escape") event.target.blur(); return; }
  const by = {ArrowDown: 1, j: 1, ArrowUp: -1, k: -1}[event.key];
  const across = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (event.key >= "1" && event.key <= "4") show(views[event.key - 1]);
  else if (event.key === "?") $("keys").showModal();
  else if (event.key === "t") toggleTheme();
  else if (event.key === "/") { show("graph"); $("filter").focus(); }
  else if (event.key === "Enter" && view === "overview" && event.target === document.body) choose(chosen, true);
  else if (by && view === "stages") { file += by; drawStages(); }
  else if (by && (view === "overview" || view === "kernels")) {
    choose(chosen + by);
    if (view === "overview") document.querySelector("#table .chosen")?.scrollIntoView({block: "nearest"});
  }
  else if (across && view === "kernels") turn(event.shiftKey && split ? 1 : 0, across);
  else if (view === "kernels" && event.key === "n") walk(1);
  else if (view === "kernels" && event.key === "p") walk(-1);
  else if (view === "kernels" && event.key === "s") toggleSplit();
  else return;
  event.preventDefault();
});

const dark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(name) { document.documentElement.dataset.theme = name; }
function toggleTheme() { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); }
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
$("theme").addEventListener("click", toggleTheme);
$("help").addEventListener("click", () => $("keys").showModal());
for (const name of views) $(`tab-${name}`).addEventListener("click", () => show(name));
$("filter").addEventListener("input", drawOperations);

unpacked("data").then(found => {
  data = found;
  drawOverview();
  drawList();
  const [, name, number] = /^#(\w+)(?:\/(\d+))?$/.exec(location.hash) ?? [];
  if (number) choose(Number(number));
  show(views.includes(name) ? name : "overview");
  choose(chosen);
  document.documentElement.dataset.ready = Math.round(performance.now());  // milliseconds
});
