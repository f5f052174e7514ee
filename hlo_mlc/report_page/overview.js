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

// The best of the trials so far, over their numbers; grey is the default's speed.
function curve(trials) {
  if (!trials.length) return "";
  const w = 120, h = 26, most = Math.max(1.05, ...trials.map(t => t[1])), last = Math.max(1, trials.at(-1)[0]);
  const X = n => (w - 4) * n / last + 2, Y = v => h - 2 - (h - 4) * v / most;
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

function draw(rows) {
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
