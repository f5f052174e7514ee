"""Writes docs/walkthrough.md: one small function at every stage, from real dumps.

    python scripts/walkthrough.py           # for the level x86-64-v4, whatever machine this is

Everything quoted there is what the compiler wrote; the words between are in walkthrough.md.in.
"""

from __future__ import annotations

import difflib
import inspect
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template

import jax
import jax.numpy as jnp

from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.compiler import compile_module
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import named
from hlo_mlc_bench.script import arguments

TARGET = "x86-64-v4"
ROWS, COLUMNS = 128, 512

_ROOT = Path(__file__).parents[1]
_PAGE, _WORDS = _ROOT / "docs" / "walkthrough.md", _ROOT / "scripts" / "walkthrough.md.in"
_WIDEST = 200  # columns of a quoted line
_HEAD, _TAIL = 22, 4  # lines of an excerpt of machine code


def masked_softmax(scores: jax.Array, mask: jax.Array) -> jax.Array:
    masked = jnp.where(mask, scores, -jnp.inf)
    weights = jnp.exp(masked - jnp.max(masked, axis=-1, keepdims=True))
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def main() -> None:
    """Writes the page."""
    _PAGE.parent.mkdir(exist_ok=True)
    _PAGE.write_text(page(dump()))
    print(_PAGE.relative_to(_ROOT))


def dump() -> dict[str, str]:
    """The files that compiling the function leaves: by the first word of their names' ends."""
    arguments = (
        jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32),
        jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.bool_),
    )
    with tempfile.TemporaryDirectory() as folder:
        module = jax.jit(masked_softmax).lower(*arguments).compiler_ir()
        options = Options(
            choose="auto",
            calibrate=False,
            cache_dir=Path(folder) / "cache",
            dump_dir=Path(folder) / "dump",
        )
        compile_module(module, options, backend=CpuBackend(named(TARGET)))
        (run,) = (Path(folder) / "dump").iterdir()
        # Places in the source are named from the project's folder, wherever that is.
        return {
            path.name[:2]: path.read_text().replace(f"{_ROOT}/", "")
            for path in sorted(run.iterdir())
            if path.name[:2].isdecimal()
        }


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """One step of a schedule, and the loops that it led to."""

    step: str
    loops: str


def page(files: dict[str, str]) -> str:
    """The page in Markdown, from the texts of a dump by their numbers."""
    naive, rewrites = _history(files["50"])
    return Template(_WORDS.read_text()).substitute(
        target=TARGET,
        rows=ROWS,
        columns=COLUMNS,
        source=_block("python", inspect.getsource(masked_softmax)),
        module=_block("mlir", files["00"]),
        graph=_block("text", files["10"]),
        nodes=_count(r"= stablehlo\.", files["10"]),
        nodes_left=_count(r"= stablehlo\.", files["20"]),
        simplified=_block("text", files["20"]),
        plan=_block("text", files["30"]),
        tensors=_block("text", files["40"]),
        naive=_block("text", naive),
        refusals=_block("text", _refusals(files["50"])),
        rewrites=len(rewrites),
        steps="".join(_steps(naive, rewrites)),
        loops=_block("text", files["60"]),
        ir_lines=len(files["80"].splitlines()),
        ir=_block("llvm", _loop(files["80"], _is_ir_loop)),
        assembly=_block("asm", _loop(files["90"], _is_assembly_loop)),
        emitted=_block("mlir", files["99"]),
    )


def _history(text: str) -> tuple[str, list[_Rewrite]]:
    """The naive loops of the first nest, and its rewrites."""
    sections = re.split(r"^(?=naive$|\w+\(.*\)$)", text, flags=re.MULTILINE)[1:]
    naive, *steps = (section.partition("\n") for section in sections)
    return naive[2], [_Rewrite(step, loops) for step, _, loops in steps]


def _refusals(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line.startswith(("nest ", "not ")))


def _steps(naive: str, rewrites: Iterable[_Rewrite]) -> list[str]:
    """Each rewrite with the lines that it changes."""
    parts, before, explained = [], naive, set()
    for number, rewrite in enumerate(rewrites, 1):
        name, _, arguments = rewrite.step.partition("(")
        meaning = "" if name in explained else f" {_MEANING[name]}"
        explained.add(name)
        parts.append(
            f"**{number}. `{name}({arguments}`**{meaning}\n\n"
            f"{_block('diff', _changes(before, rewrite.loops))}\n"
        )
        before = rewrite.loops
    return parts


def _changes(before: str, after: str) -> str:
    """The lines that went and came; what is only indented otherwise did neither."""
    old, new = ([line for line in text.splitlines() if line] for text in (before, after))
    matcher = difflib.SequenceMatcher(
        None, [line.strip() for line in old], [line.strip() for line in new], autojunk=False
    )
    lines = []
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if kind != "equal":
            lines += [f"-{line}" for line in old[old_from:old_to]]
            lines += [f"+{line}" for line in new[new_from:new_to]]
    return "\n".join(lines)


_MEANING = {
    "rfactor": "folds into several vectors of partial results, which are folded at the end: lanes "
    "and latency are used.",
    "cascade": "adds up long sums in runs, and those in runs: less is lost in rounding.",
    "split": "cuts a loop into blocks; what is left over is a loop of its own, or, if so told, a "
    "shorter block.",
    "reorder": "exchanges nested loops.",
    "fuse": "makes one loop of two nested ones.",
    "unroll": "says that the iterations are to be written out.",
    "vectorize": "says that the iterations are the lanes of a vector.",
    "contract": "shrinks a buffer to what one iteration of the loops around it needs.",
    "parallel": "says that the iterations are tasks for threads.",
}


def _loop(text: str, is_loop: Callable[[list[str]], bool]) -> str:
    """The beginning and the end of the first block of code that `is_loop`."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.match(r"\S+:", line):
            blocks.append([])
        blocks[-1].append(line)
        if re.match(r"\s+(j[a-z]+\s|br )", line):  # what follows a jump is another block
            blocks.append([])
    block = next(block for block in blocks if is_loop(block))
    if len(block) <= _HEAD + _TAIL:
        return "\n".join(block)
    left = len(block) - _HEAD - _TAIL
    return "\n".join([*block[:_HEAD], f"  ... {left} lines more ...", *block[-_TAIL:]])


def _is_ir_loop(block: list[str]) -> bool:
    """A block that jumps to itself and compares vectors."""
    label = block[0].rstrip(":") if block else ""
    return bool(label) and f"label %{label}" in block[-1] and any("fcmp ogt <" in b for b in block)


def _is_assembly_loop(block: list[str]) -> bool:
    label = block[0].rstrip(":") if block else ""
    return (
        bool(label)
        and block[-1].endswith(f"\t{label}")
        and "vmaxps" in " ".join(block)
        and "vscalef" not in " ".join(block)
    )


def _block(language: str, text: str) -> str:
    lines = [
        line if len(line) <= _WIDEST else f"{line[:_WIDEST]} ..."
        for line in text.rstrip("\n").expandtabs(4).splitlines()
    ]
    return "\n".join([f"```{language}", *lines, "```", ""])


def _count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


if __name__ == "__main__":
    arguments(__doc__, most=0)
    main()
