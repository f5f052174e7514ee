"""The page on a function: what is in it, and what a browser makes of it."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import compile_stablehlo, explain, mlc_jit, page
from hlo_mlc.explain import Explanation
from hlo_mlc.limits import Level, MachineLimits
from hlo_mlc.report import Report
from hlo_mlc.runtime.files import JOURNAL
from hlo_mlc.support.errors import UsageError
from hlo_mlc.tuning.messages import Failed, Timed
from hlo_mlc.tuning.space import Parameter, Space
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
from making.contrast import GRAPHICS, TEXT, contrast
from making.left import by_xla

X = jnp.linspace(-1.0, 2.0, 64 * 128).reshape(64, 128)
LIMITS = MachineLimits(gflops=100.0, caches=(Level(1 << 20, 300.0),), memory_gb_s=20.0)
STEPS = {"Tensors", "Schedule", "Loops", "Proved", "LLVM IR", "Assembly"}


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "machine_limits", lambda options: LIMITS)


def softmax_of_products(x: jax.Array) -> jax.Array:
    y = jax.nn.softmax(x @ x.T)  # </script> & "quotes" in a line of the user's
    return by_xla(y)


def written(function: Callable, path: Path, *args: Any, choose: str = "ours") -> str:
    shown = mlc_jit(function, choose=choose).explain(*(args or (X,)))
    assert shown.html(path) == path
    return path.read_text()


def unpacked(text: str, key: str) -> Any:
    """What is packed into a page under a key."""
    packed = re.search(f'data-id="{re.escape(key)}">([^<]*)<', text)
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


def test_what_is_in_it(tmp_path: Path) -> None:
    text = written(softmax_of_products, tmp_path / "r.html")
    data = unpacked(text, "data")
    assert data["function"] == "softmax_of_products" and data["limits"]["gflops"] == 100.0
    names = [kernel["name"] for kernel in data["kernels"]]
    assert any(name.startswith("softmax@test_page.py:") for name in names)
    assert any(left["op"].endswith("convert") for left in data["left"])
    for kernel in data["kernels"]:
        texts = unpacked(text, kernel["id"])
        assert set(texts) == STEPS and all(texts.values())
        assert kernel["id"] in texts["Loops"] and "define" in texts["LLVM IR"]
    assert unpacked(text, "module").keys() >= {
        "00-stablehlo.mlir",
        "10-graph.txt",
        "20-simplified.txt",
        "30-plan.txt",
    }
    assert {name for name, _, _ in data["stages"]} >= {"import", "simplify", "partition", "emit"}


def test_the_lines_of_the_user(tmp_path: Path) -> None:
    data = unpacked(written(softmax_of_products, tmp_path / "r.html"), "data")
    first = softmax_of_products.__code__.co_firstlineno
    source = data["sources"][__file__]
    (softmax,) = [kernel for kernel in data["kernels"] if kernel["name"].startswith("softmax")]
    assert first + 1 in data["lines"][softmax["id"]][__file__]
    assert source[str(first + 1)].endswith('</script> & "quotes" in a line of the user\'s')
    assert source[str(first)].startswith("def softmax_of_products")


def test_the_graph_and_the_memory(tmp_path: Path) -> None:
    plan = unpacked(written(softmax_of_products, tmp_path / "r.html"), "data")["plan"]
    units = plan["units"]
    kernels = [unit for unit in units if unit[0]]
    left = next(n for n, unit in enumerate(units) if unit[1].endswith("convert"))
    assert len(kernels) == 2 and units[left][2] == [units.index(kernels[-1])]
    square = 64 * 64 * 4
    assert plan["parameter_bytes"] == X.nbytes
    assert [unit[4] for unit in kernels] == [X.nbytes + square, X.nbytes + 2 * square]
    assert units[left][4] == X.nbytes + square  # what is not modelled has no size
    owners = {op: units[at][0] for op, _, _, at, _ in plan["operations"] if at >= 0}
    assert owners["stablehlo.dot_general"] == kernels[0][0]
    assert owners["stablehlo.exponential"] == kernels[1][0]
    why = [plan["reasons"][why] for op, *_, why in plan["operations"] if "convert" in op]
    assert why and "not modelled" in why[0]


@pytest.mark.parametrize("choose", ["xla", "auto"])
def test_of_what_stays_with_xla(choose: str, tmp_path: Path) -> None:
    text = written(lambda x: by_xla(x), tmp_path / "r.html", choose=choose)
    data = unpacked(text, "data")
    assert data["kernels"] == [] and (data["reasons"] or data["left"])
    assert (unpacked(text, "module") == {}) == (choose == "xla")


def test_a_report_writes_it_too(tmp_path: Path) -> None:
    function = mlc_jit(softmax_of_products, choose="ours")
    assert function.report(X).html(tmp_path / "r.html") == tmp_path / "r.html"
    data = unpacked((tmp_path / "r.html").read_text(), "data")
    assert data["plan"] and all(kernel["measured"] for kernel in data["kernels"])
    with pytest.raises(UsageError, match=r"give report\(\.\.\.\) the arguments"):
        function.report().html(tmp_path / "none.html")
    module = jax.jit(softmax_of_products).lower(X).as_text()
    assert compile_stablehlo(module, choose="ours").report().html(tmp_path / "m.html").exists()


def test_of_what_calls_have_shown_to_be_slower(tmp_path: Path) -> None:
    """What was planned is not what runs: the same units, of XLA's."""
    function = mlc_jit(softmax_of_products, choose="ours")
    slower = dataclasses.replace(function.explain(X), report=Report.untouched("XLA is faster"))
    data = unpacked(slower.html(tmp_path / "r.html").read_text(), "data")
    assert data["kernels"] == [] and data["reasons"] == ["XLA is faster"]
    units = data["plan"]["units"]
    assert not any(unit[0] for unit in units)
    assert [unit[1] for unit in units][-1].endswith("convert")
    assert "stablehlo.divide" in {unit[1] for unit in units}  # of the softmax


def test_of_a_module(tmp_path: Path) -> None:
    module = jax.jit(softmax_of_products).lower(X).as_text()
    path = compile_stablehlo(module, choose="ours").explain().html(tmp_path / "r.html")
    data = unpacked(path.read_text(), "data")
    assert data["function"] == "@main" and len(data["kernels"]) == 2 and data["plan"]


def test_what_tuning_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    data = unpacked(written(jnp.tanh, tmp_path / "r.html"), "data")
    assert data["attempts"] == {}
    kernel_id = data["kernels"][0]["id"]
    space = Space((Parameter(0, "elementwise", "unroll", (1, 2, 4), 2),))
    for name in (f"tanh 64x128xf32 {kernel_id}-cpu", "sine 1xf32 0123456789abcdef-cpu"):
        study = KernelStudy(open_storage(tmp_path / JOURNAL), name, space)
        for outcome in (Timed(9.0, 9.0, 1.0), Failed("it crashed: SIGSEGV"), Timed(9.0, 6.0, 1.5)):
            study.tell(study.next(), outcome, "")
    data = unpacked(written(jnp.tanh, tmp_path / "r.html"), "data")
    (tried,) = data["attempts"].values()
    assert [(number, speedup) for number, speedup, _ in tried] == [(0, 1.0), (1, 0.0), (2, 1.5)]
    assert tried[1][2] == "it crashed: SIGSEGV" and "unroll=" in tried[2][2]


def test_of_a_module_that_was_cleared(tmp_path: Path) -> None:
    function = compile_stablehlo(jax.jit(jnp.tanh).lower(X).as_text(), choose="ours")
    function.clear_cache()
    assert "tanh" in str(function.explain())
    with pytest.raises(UsageError, match="the arguments that it is called with"):
        function.explain().html(tmp_path / "r.html")
    assert function.explain(X).html(tmp_path / "r.html").exists()


def test_it_is_one_file_and_asks_for_no_other(tmp_path: Path) -> None:
    text = written(softmax_of_products, tmp_path / "r.html")
    for pattern in (r"\bsrc\s*=", r"<link\b", r"@import", r"\bfetch\(", r"url\(", r"https?://"):
        assert not re.search(pattern, text), pattern
    assert text.count("<script") == text.count("</script>")
    assert str(tmp_path) not in text


def many(x: jax.Array) -> jax.Array:
    for n in range(60):
        x = jnp.sin(x) * n + x[:, ::-1]
    return x


def test_large_programs_are_small_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the texts there are as many as fit; all else is there whatever they take."""
    shown = mlc_jit(many, choose="ours").explain(X)
    assert page._MOST_TEXT < 2_000_000
    some, none = (_with_most(monkeypatch, shown, tmp_path, most) for most in (100_000, 0))
    assert len(unpacked(some, "data")["plan"]["operations"]) > 350
    assert len(none) < len(some) <= len(none) + 100_000
    assert 'data-id="data"' in none


def _with_most(monkeypatch: pytest.MonkeyPatch, shown: Explanation, folder: Path, most: int) -> str:
    """The page with at most so many bytes of texts."""
    monkeypatch.setattr(page, "_MOST_TEXT", most)
    return shown.html(folder / "r.html").read_text()


def test_texts_that_are_too_long_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_LONGEST", 200)
    text = written(softmax_of_products, tmp_path / "r.html")
    (assembly, *_) = [
        unpacked(text, k["id"])["Assembly"] for k in unpacked(text, "data")["kernels"]
    ]
    assert "lines more: HLO_MLC_DUMP=folder has all of them" in assembly and len(assembly) < 300


def test_what_cannot_be_written(tmp_path: Path) -> None:
    function = mlc_jit(softmax_of_products, choose="ours")
    function.lower(X)
    with pytest.raises(UsageError, match="there is no folder"):
        function.explain(X).html(tmp_path / "no" / "r.html")
    with pytest.raises(UsageError, match="it is a folder"):
        function.explain(X).html(tmp_path)
    with pytest.raises(UsageError, match="the arguments that it is called with"):
        function.explain().html(tmp_path / "r.html")
    assert not any(tmp_path.iterdir())


PALETTES = re.findall(r":root.*?\{(.*?)\n\}", (page._FOLDER / "page.css").read_text(), re.DOTALL)


@pytest.mark.parametrize("palette", PALETTES, ids=["light", "dark"])
def test_it_can_be_read(palette: str) -> None:
    """Whatever stands on whatever ground."""
    colours = dict(re.findall(r"--([\w-]+): (#\w{6});", palette))
    for ground in ("paper", "card", "ours-soft", "xla-soft", "mark"):
        for words in ("ink", "quiet", "warn", "key", "number", "comment"):
            assert contrast(colours[words], colours[ground]) >= TEXT, f"{words} on {ground}"
    for ground in ("paper", "card"):  # links, and the shares that are chosen
        assert contrast(colours["ours"], colours[ground]) >= TEXT
        assert contrast(colours["xla"], colours[ground]) >= GRAPHICS


VIEWS = {
    "overview": ("of a call in 2 kernels of ours", "convert", "Roofline", "Memory over"),
    "kernels/1": ("softmax@test_page.py", "Your code", "LLVM IR", "proved: in bounds"),
    "graph": ("not modelled", '<g class="xla"'),
    "stages": ("StableHLO, as XLA gets it", "simplify", "func.func"),
}


@pytest.mark.parametrize("view", VIEWS)
def test_in_a_browser(view: str, tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    plan = unpacked(written(softmax_of_products, path), "data")["plan"]
    body, _ = opened(path, view)
    for phrase in VIEWS[view]:
        assert phrase in body
    assert len(re.findall(r'role="tabpanel"[^>]*hidden=""', body)) == 3, "one view is shown"
    count = len(plan["operations"])
    assert (f">{count} of {count}<" in body) == (view == "graph")


def opened(path: Path, view: str, steps: str = "") -> tuple[str, Any]:
    """What a browser makes of a page, and what `steps`, the body of a function of JavaScript, have
    returned that were taken once it was there."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium (Debian's package of this name) to open the page with")
    page = path.read_text().replace("</body>", f"{SCRIPT.replace('STEPS', steps)}</body>")
    path.write_text(page)
    ran = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={path.parent}/b",
            "--virtual-time-budget=5000",
            "--dump-dom",
            f"file://{path}#{view}",
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert 'data-ready="' in ran.stdout, "the script came to its end"
    seen = re.search(r'data-seen="([^"]*)"', ran.stdout)
    return ran.stdout.partition("<script")[0], json.loads(html.unescape(seen[1]))


SCRIPT = """<script>(async () => {
  const pause = () => new Promise(done => setTimeout(done, 20));
  while (!document.documentElement.dataset.ready) await pause();
  const all = choice => [...document.querySelectorAll(choice)];
  const press = key =>
    document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  const take = async () => { STEPS };
  document.documentElement.dataset.seen = JSON.stringify(await take() ?? null);
})()</script>"""


def by_turns(x: jax.Array) -> jax.Array:
    """More kernels and operations of XLA's than are drawn at once."""
    for _ in range(60):
        x = by_xla(jnp.tanh(x))
    return x


def test_of_a_large_graph_a_part_is_drawn(tmp_path: Path) -> None:
    """Around what was chosen last, in the drawing or in the list, by the mouse or by keys."""
    path = tmp_path / "r.html"
    units = unpacked(written(by_turns, path), "data")["plan"]["units"]
    assert len(units) > 170
    _, (first, after, named, chosen, rows) = opened(
        path,
        "graph",
        """
        const drawn = () => all("#drawing g").map(g => Number(g.dataset.unit));
        const first = drawn();
        const apart = row => !first.includes(Number(row.dataset.at));
        all("#operations [data-at]").findLast(apart).focus();
        press("Enter");
        const after = drawn();
        all("#drawing g")[0].focus();
        press(" ");
        const chosen = all("#drawing g.chosen").map(g => Number(g.dataset.unit));
        return [first, after, document.activeElement.getAttribute("aria-label"), chosen,
          all("#operations tbody tr").length];
        """,
    )
    assert len(first) == len(after) == 60 and set(first) != set(after)
    assert chosen == [after[0]] and rows < 10
    assert named.startswith(("tanh", "convert"))


def test_the_focus_stays_where_it_was(tmp_path: Path) -> None:
    """In what is drawn anew because of a key."""
    path = tmp_path / "r.html"
    written(softmax_of_products, path)
    _, (sorted_by, focused, tab, texts) = opened(
        path,
        "overview",
        """
        all("#table [data-column]")[5].focus();
        document.activeElement.click();
        const now = [document.querySelector("[aria-sort]"), document.activeElement];
        press("2");
        while (!document.querySelector("[data-side] [role=tab]")) await pause();
        all("[data-side='1'] [role=tab]")[0].focus();
        document.activeElement.click();
        return [...[...now, document.activeElement].map(e => e.textContent),
          all("[data-side] [aria-selected=true]").map(e => e.textContent)];
        """,
    )
    assert sorted_by == focused == "kernel"
    assert tab == "Tensors" and texts == ["Loops", "Tensors"]
