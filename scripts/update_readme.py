"""Writes the benchmark table of README.md, with the cases of the demo, from a result file of
`hlo-mlc bench --json`.

Usage: python scripts/update_readme.py [RESULTS.json]  (default: the newest in bench/results/)
"""

from __future__ import annotations

import sys
from pathlib import Path

from hlo_mlc_bench.cases import DEMO
from hlo_mlc_bench.results import Results, Row, load

_ROOT = Path(__file__).resolve().parent.parent
_README = _ROOT / "README.md"
_BEGIN = "<!-- benchmarks: written by scripts/update_readme.py -->\n"
_END = "<!-- end of benchmarks -->\n"
_HEADER = "| workload | jax.jit ms | hlo_mlc ms | ratio | max error | clusters | coverage |\n"
_RULE = "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"


def main(arguments: list[str]) -> None:
    """Replaces what stands between the two markers."""
    path = Path(arguments[0]) if arguments else newest()
    text = _README.read_text()
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise SystemExit(f"{_README} lacks the markers {_BEGIN.strip()} … {_END.strip()}")
    _README.write_text(before + begin + section(load(path)) + end + after)
    print(f"{_README.name}: benchmarks of {path}")


def newest() -> Path:
    """The result file that was measured last."""
    paths = sorted(
        (_ROOT / "bench" / "results").glob("*.json"),
        key=lambda path: load(path).environment["date"],
    )
    if not paths:
        raise SystemExit("There is no file in bench/results/: run hlo-mlc bench --json first")
    return paths[-1]


def section(results: Results) -> str:
    """The table in Markdown, and the line that says where it was measured."""
    here = results.environment
    lines = [_line(row) for row in results.rows if row.name in DEMO]
    return (
        f"\n{_HEADER}{_RULE}{''.join(lines)}\n"
        f"{here['cpu']}, {here['cores']} cores, {here['system']}, Python {here['python']}, "
        f'JAX {here["packages"]["jax"]}, `choose="{here["choose"]}"`, {here["date"][:10]}. '
        "Times are medians of one call, the ratio is jax.jit / hlo_mlc (median of pairs), errors "
        "are relative to an evaluation in 64 bits.\n\n"
    )


def _line(row: Row) -> str:
    if row.status != "right":
        return f"| {row.name} | | | {row.status} | | | |\n"
    return (
        f"| {row.name} | {row.jax_ms:.3g} | {row.ours_ms:.3g} | {row.ratio:.2f} "
        f"| {row.ours_error:.1e} | {row.clusters} | {row.coverage:.0%} |\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
