"""Writes docs/walkthrough.md: one small function at every stage, from real dumps.

    python scripts/walkthrough.py           # for the level x86-64-v4, whatever machine this is

Everything quoted there is what the compiler wrote; the words between are below.
"""

from __future__ import annotations

import difflib
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from hlo_mlc.compiler import compile_module
from hlo_mlc.support.options import Options

TARGET = "x86-64-v4"
ROWS, COLUMNS = 128, 512

_ROOT = Path(__file__).parents[1]
_PAGE = _ROOT / "docs" / "walkthrough.md"
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
    arguments = (jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.float32),
                 jax.ShapeDtypeStruct((ROWS, COLUMNS), jnp.bool_))
    with tempfile.TemporaryDirectory() as folder:
        module = jax.jit(masked_softmax).lower(*arguments).compiler_ir()
        options = Options(target=TARGET, choose="auto", calibrate=False,
                          cache_dir=Path(folder) / "cache", dump_dir=Path(folder) / "dump")
        compile_module(module, options)
        (run,) = (Path(folder) / "dump").iterdir()
        # Places in the source are named from the project's folder, wherever that is.
        return {path.name[:2]: path.read_text().replace(f"{_ROOT}/", "")
                for path in sorted(run.iterdir()) if path.name[:2].isdecimal()}


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """One step of a schedule, and the loops that it led to."""

    step: str
    loops: str


def page(files: dict[str, str]) -> str:
    """The page in Markdown, from the texts of a dump by their numbers."""
    naive, rewrites = _history(files["50"])
    source = inspect.getsource(masked_softmax)
    nodes = [_count(r"= stablehlo\.", files[n]) for n in ("10", "20")]
    parts = [
        f"""# From JAX to machine code

This page follows one function through the compiler. Whatever is quoted is what
`HLO_MLC_DUMP=folder` writes, one numbered file for each stage; the page itself is written by
`python scripts/walkthrough.py`, for the CPU level `{TARGET}`. [ARCHITECTURE.md](../ARCHITECTURE.md)
has the same path as a table, with the folder of each stage.

## What the user writes

Attention needs it: the softmax of the scores in each row, without those that a mask forbids.

{_block("python", source)}
As NumPy would run it, this makes six passes over arrays of that size and writes four of them. One
pass that loads each row once would do. The way there has nine stages.

## 1. StableHLO: what JAX hands over · `00-stablehlo.mlir`

`mlc_jit` traces the function like `jax.jit` does. What comes out is a module of StableHLO, the
language in which JAX talks to XLA: every value has a shape, every operation is a whole-array one,
and broadcasting is spelled out.

{_block("mlir", files["00"])}
## 2. Graph: our own data · `10-graph.txt`

`frontend/` reads the module into a graph of frozen Python objects: calls are inlined, every value
has a number, every node knows the line of the user's code that it came from. An operation that we
do not model would be kept whole, as an opaque node, and stay with XLA; here there is none.

{_block("text", files["10"])}
## 3. Graph, simplified · `20-simplified.txt`

`passes/` rewrites the graph until nothing changes: constants are folded, equal nodes merged, dead
ones dropped, chains of data movement composed. Of {nodes[0]} nodes, {nodes[1]} are left; two
broadcasts in a row, for instance, are one.

{_block("text", files["20"])}
## 4. Plan: what becomes a kernel · `30-plan.txt`

`partition/` decides which nodes go into a kernel together and which stay with XLA, and says why.
The cost model predicts both sides from what the stages do and from how fast the machine is
(`hlo-mlc doctor` measures that; these are its typical figures). Here all becomes one kernel. Its
name is the hash of what it computes: another layer with the same shapes would share it.

{_block("text", files["30"])}
## 5. Tensor program: what is computed, and no order · `40-*.tensors.txt`

`ops/` says of each operation which element of the result is which expression of elements of the
operands. Substituting these into each other fuses them: the mask, the subtraction and the
exponential exist only inside expressions now. A value keeps a buffer where computing it again
would cost more, as the exponentials do (`along`: stored while they are summed). Three stages are
left, in one *nest*: they share the loop over rows, so what passes between them is private to a row.

{_block("text", files["40"])}
## 6. Loops · `50-*.schedule.txt`, `60-*.loops.txt`

Now order comes in. The stages as naive loops, one after the other (`loops/lower.py`): `<-` folds a
value into another, `alloc` is memory in reach of the loops below it.

{_block("text", naive)}
A *template* (`templates/`) takes the nest and rewrites these loops by primitives (`schedule/`);
each keeps what is computed, and is refused where it would not. Templates that do not apply say why:

{_block("text", _refusals(files["50"]))}
The one that does makes {len(rewrites)} rewrites. Shown of each are the lines that change, without
those that only move to the right.

""",
        *_steps(naive, rewrites),
        f"""The result, with the kernel's operands around it. From the outside in: tasks for
threads, each with a block of rows; for each row a pass that finds the maximum, one that computes
the exponentials and sums them, one that divides. Sums are reassociated only here, in an order that
depends on the shape and never on the number of threads.

{_block("text", files["60"])}
## 7. LLVM IR · `80-*.ll`

`codegen/` prints the loops as LLVM IR, {len(files["80"].splitlines())} lines of it. Nothing is left
to a vectorizer: a vectorized loop is vector instructions, an unrolled one is written out. `exp` has
become a polynomial before (`codegen/legalize/`). This is the beginning and the end of the loop that
finds the maximum. With a NaN it is to be a NaN, as in JAX: hence the comparison and the sum.

{_block("llvm", _loop(files["80"], _is_ir_loop))}
## 8. Machine code · `90-*.s`

LLVM chooses instructions and registers. The partial maxima stay in registers, the mask becomes a
mask register, and a masked blend loads the scores. The same excerpt:

{_block("asm", _loop(files["90"], _is_assembly_loop))}
The object code is kept in the cache, under the hash of what it computes, for which target, and of
the sources that generated it; the next process takes it from there.

## 9. StableHLO again: what XLA gets · `99-stablehlo.mlir`

`frontend/emit.py` writes the module with the kernel in place of what it computes. XLA compiles this
and runs it; at the custom call, one C++ function (`custom_calls/`) finds the code by its id and
calls it with the buffers. Loops marked `parallel` run on XLA's own threads.

{_block("mlir", files["99"])}
## Where to go on

- `print(f.explain(*args))` says of any function of yours what became of it, kernel by kernel, with
  the reason for every refusal, and times each kernel.
- `hlo-mlc inspect module:function --arg f32[{ROWS},{COLUMNS}] --dump folder` writes these files.
- `hlo_mlc/compiler.py` is this page as code: one line a stage.
""",
    ]
    return "".join(parts)


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
        parts.append(f"**{number}. `{name}({arguments}`**{meaning}\n\n"
                     f"{_block('diff', _changes(before, rewrite.loops))}\n")
        before = rewrite.loops
    return parts


def _changes(before: str, after: str) -> str:
    """The lines that went and came; what is only indented otherwise did neither."""
    old, new = ([line for line in text.splitlines() if line] for text in (before, after))
    matcher = difflib.SequenceMatcher(None, [line.strip() for line in old],
                                      [line.strip() for line in new], autojunk=False)
    lines = []
    for kind, old_from, old_to, new_from, new_to in matcher.get_opcodes():
        if kind != "equal":
            lines += [f"-{line}" for line in old[old_from:old_to]]
            lines += [f"+{line}" for line in new[new_from:new_to]]
    return "\n".join(lines)


_MEANING = {
    "rfactor": "folds into several vectors of partial results, which are folded at the end: lanes "
               "and latency are used.",
    "split": "cuts a loop into blocks.",
    "block": "cuts a loop into blocks, the last of them shorter.",
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
    return bool(label) and f"label %{label}" in block[-1] and any("fcmp uno <" in b for b in block)


def _is_assembly_loop(block: list[str]) -> bool:
    label = block[0].rstrip(":") if block else ""
    return bool(label) and block[-1].endswith(f"\t{label}") and any("vcmpunord" in b for b in block)


def _block(language: str, text: str) -> str:
    lines = [line if len(line) <= _WIDEST else f"{line[:_WIDEST]} ..."
             for line in text.rstrip("\n").expandtabs(4).splitlines()]
    return "\n".join([f"```{language}", *lines, "```", ""])


def _count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


if __name__ == "__main__":
    sys.exit(main())
