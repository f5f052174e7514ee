"use strict";
const PERIOD_MS = 5000;
const $ = id => document.getElementById(id);
const escaped = text => String(text).replace(/[&<>"]/g,
  c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
// A kernel's name, which folds between what it is made of.
const foldable = name => escaped(name).replace(/[+@,(]/g, sign => sign === "@" ? "<wbr>@" : `${sign}<wbr>`);
const times = ratio => `${ratio.toFixed(2)}×`;
const speed = ratio => !ratio ? "–" : Math.abs(ratio - 1) < 0.005 ? "as fast" : ratio > 1 ? `${times(ratio)} faster` : `${times(1 / ratio)} slower`;
const duration = us => us < 999.5 ? [us.toPrecision(3), "µs"] : us < 999500 ? [(us / 1e3).toPrecision(3), "ms"] : [(us / 1e6).toPrecision(3), "s"];
const share = of => `${Math.round(100 * Math.min(1, of))} %`;
const taken = {ours: "our kernel", xla: "XLA's code", modelled: "nothing yet", "": "too near to tell"};

// The best of the trials so far, over their numbers; grey is the default's speed, in the middle. What
// is slower than the scale reaches stands at its foot.
function curve(trials) {
  if (!trials.length) return "";
  const w = 120, h = 26, most = Math.max(1.05, ...trials.map(t => t[1])), last = Math.max(1, trials.at(-1)[0]);
  const X = n => (w - 4) * n / last + 2, Y = v => 2 + (h - 4) * Math.min(1, (most - v) / (2 * (most - 1)));
  let best = 0, path = "";
  for (const [n, speedup] of trials) {
    if (speedup <= best) continue;
    path += path ? `H${X(n)}V${Y(speedup)}` : `M${X(n)},${Y(speedup)}`;
    best = speedup;
  }
  return `<svg width="${w}" height="${h}" role="img" aria-label="best so far"><line class="axis" x1="0" x2="${w}" y1="${Y(1)}" y2="${Y(1)}"/>
    ${trials.map(([n, v]) => `<circle cx="${X(n)}" cy="${Y(v)}" r="1.4" class="${v ? "dot" : "base"}"/>`).join("")}<path class="roof" d="${path}H${X(last)}"/></svg>`;
}

// What was recorded was measured anew against the default after the search; a trial may have shown
// another number.
function winner(row) {
  const best = Math.max(0, ...row.trials.map(t => t[1]));
  const schedule = row.best.map(nest => `<code>${escaped(nest)}</code>`).join("<br>");
  if (!row.recorded) return `<span class="quiet">no winner yet</span>`;
  const why = row.choice === "modelled" ? "a model tells no less apart" : "the winner is found by measuring the best again";
  const apart = best && Math.abs(Math.log(best / row.over_default)) > 0.02
    ? `<div class="ops">the fastest trial had shown ${times(best)}; ${why}</div>` : "";
  return `${row.is_default ? `<span class="quiet">the default: </span>` : ""}${schedule}${apart}`;
}

// What its kernels together are to each function, by their shares of its time.
function functionsOf(rows) {
  const found = new Map();
  for (const row of rows) for (const [name, share] of Object.entries(row.shares)) {
    if (!found.has(name)) found.set(name, {name, kernels: [], whole: 0, last: ""});
    const one = found.get(name);
    one.kernels.push({...row, share});
    one.whole += share;
    if (row.last > one.last) one.last = row.last;
  }
  const mean = (one, key) => one.kernels.every(k => k[key]) ? one.kernels.reduce((sum, k) => sum + k.share * k[key], 0) / one.whole : 0;
  return [...found.values()].map(one => ({...one, over_default: mean(one, "over_default"), over_xla: mean(one, "over_xla"), of_limit: mean(one, "of_limit")}))
    .sort((a, b) => b.last.localeCompare(a.last));
}

// Kernels that are being tuned, then those of the function that was tuned last, the costliest first.
function inOrder(rows, functions) {
  const place = row => functions.findIndex(one => one.name in row.shares) >>> 0, cost = row => row.shares[functions[place(row)]?.name] ?? 0;
  return [...rows].sort((a, b) => !!b.running - !!a.running || place(a) - place(b) || cost(b) - cost(a));
}

function draw(rows) {
  const functions = functionsOf(rows);
  rows = inOrder(rows, functions);
  $("functions").parentElement.hidden = !functions.length;
  const heads = [["function", ""], ["kernels", "n"], ["than by default", "n"], ["than XLA", "n"], ["of the limit", "n"], ["last trial", "n"]];
  $("functions").innerHTML = `<thead><tr>${heads.map(([title, kind]) => `<th class="${kind}">${title}</th>`).join("")}</tr></thead><tbody>${functions.map(one =>
    `<tr><td><code>${escaped(one.name)}</code></td><td class="n">${one.kernels.length}</td><td class="n">${speed(one.over_default)}</td><td class="n">${speed(one.over_xla)}</td>
      <td class="n">${one.of_limit ? share(one.of_limit) : "–"}</td><td class="n quiet">${one.last}</td></tr>`).join("")}</tbody>`;
  const recorded = rows.filter(row => row.recorded && row.over_default > 0);
  const mean = recorded.length ? Math.exp(recorded.reduce((sum, row) => sum + Math.log(row.over_default), 0) / recorded.length) : 0;
  const trials = rows.reduce((sum, row) => sum + row.trials.length, 0), running = rows.filter(row => row.running).length;
  const figure = (number, text) => `<div><strong>${number}</strong><span>${text}</span></div>`;
  $("figures").innerHTML = figure(rows.length.toLocaleString("en"), rows.length === 1 ? "kernel" : "kernels")
    + figure(trials.toLocaleString("en"), "trials") + figure(mean ? times(mean) : "–", "as fast as the default schedules, geometric mean")
    + figure(running, running === 1 ? "is being tuned now" : "are being tuned now");
  const columns = [["kernel", "name"], ["a call", "n"], ["than the default", "n"], ["than XLA", "n"], ["of the limit", "n"], ["share", ""], ["what runs", ""], ["trials", "n"], ["best so far", ""], ["recorded winner", "winner"], ["last trial", "n"]];
  $("table").innerHTML = `<thead><tr>${columns.map(([title, kind]) => `<th class="${kind}">${title}</th>`).join("")}</tr></thead><tbody>${rows.map(row => {
    const failed = row.trials.filter(t => !t[1]).length, [us, unit] = duration(row.us);
    return `<tr><td><a href="${escaped(row.study)}"><code>${foldable(row.name)}</code></a><div class="ops">${escaped(row.ops)}${row.target ? ` · ${escaped(row.target)}` : ""}</div></td>
      <td class="n">${row.recorded ? `${us}<span class="u">${unit}</span>` : "–"}</td>
      <td class="n">${speed(row.over_default)}</td><td class="n">${speed(row.over_xla)}</td>
      <td class="n">${row.of_limit ? share(row.of_limit) : "–"}</td>
      <td>${Object.entries(row.shares).map(([name, of]) => `<span class="whole">${share(of)} of</span> <code>${escaped(name)}</code>`).join("<br>")}</td>
      <td class="whole">${row.recorded ? taken[row.choice] ?? "" : ""}</td>
      <td class="n">${row.trials.length}${failed ? `<div class="ops">${failed} failed</div>` : ""}${row.running ? `<div class="ops">${row.running} running</div>` : ""}</td>
      <td>${curve(row.trials)}</td><td>${winner(row)}</td><td class="n quiet">${row.last.replace(" ", "<br>")}</td></tr>`;
  }).join("")}</tbody>` || "";
  if (!rows.length) $("table").innerHTML = `<tbody><tr><td class="quiet">Nothing was tuned with this cache yet: function.tune(…) or hlo-mlc tune does.</td></tr></tbody>`;
}

async function refresh() {
  try {
    draw(await (await fetch("overview.json")).json());
  } catch {
    $("about").textContent = "The dashboard has ended: what is shown was true when it did.";
    return;
  }
  setTimeout(refresh, PERIOD_MS);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const setTheme = () => { document.documentElement.dataset.theme = dark.matches ? "dark" : "light"; };
dark.addEventListener("change", setTheme);
setTheme();
refresh();
