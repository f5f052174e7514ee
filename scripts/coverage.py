"""Writes docs/coverage.md: which ops are compiled, for which types and targets, and why others are
left to XLA.

Usage: python scripts/coverage.py

The types are found by trying: each example of an op is written for every type, and counts where
the specification has it (MLIR's verifier) and the registry supports every op that it becomes.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from jax.interpreters import mlir
from jaxlib.mlir import ir

from hlo_mlc.backends.cuda import LEFT
from hlo_mlc.expr import dtypes
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph
from hlo_mlc.ops.registry import DEFINITIONS, LEFT_TO_XLA, supports
from hlo_mlc.partition.choose.gpu_cost import LARGE_PRODUCT
from hlo_mlc.passes.complex_parts import OPS_IN_PARTS, split_complex
from hlo_mlc.passes.packed_integers import in_bytes
from hlo_mlc.support.errors import MlcError
from hlo_mlc_bench.script import arguments

PAGE = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"
# How the page names groups of types.
_GROUPS = {
    "i1": (dtypes.BOOL,),
    "packed": dtypes.PACKED,
    "integers": (
        dtypes.I8,
        dtypes.I16,
        dtypes.I32,
        dtypes.I64,
        dtypes.U8,
        dtypes.U16,
        dtypes.U32,
        dtypes.U64,
    ),
    "f8": tuple(d for d in dtypes.FLOATS_OF_A_BYTE if d is not dtypes.F8E8M0FNU),
    "scale": (dtypes.F8E8M0FNU,),
    "f16 bf16 f32 f64": (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64),
    "complex": (dtypes.C64, dtypes.C128),
}
_TYPES_OF_ELEMENTS = (*dtypes.PACKED, *dtypes.ALL)
_NOTES = {"chlo.conj": "CPU, GPU"}


def retyped(text: str, old: str, new: str) -> str:
    """A function with another element type in place of one."""
    return re.sub(rf"(?<=[<x]){re.escape(old)}(?=>)", new, text)


def _element_types(text: str) -> Iterator[str]:
    """Those of the tensors in a function, in order."""
    names = "|".join(re.escape(d.name) for d in _TYPES_OF_ELEMENTS)
    return (found[1] for found in re.finditer(rf"(?<=[<x])({names})>", text))


@functools.cache
def _context() -> ir.Context:
    """One for all functions: to make it takes longer than to read a function."""
    return mlir.make_ir_context()


def _read(text: str) -> Graph | None:
    try:
        return import_function(parse_module(text, _context()))
    except MlcError:
        return None


def is_compiled(text: str, op: str) -> bool:
    """Whether a function is well formed, has this op, and no op in it is left to XLA."""
    graph = _read(text)
    if graph is None or all(node.op != op for node in graph.nodes):
        return False
    return not any(supports(node) for node in split_complex(in_bytes(graph)).nodes)


def types_of(op: str) -> set[DType]:
    """The types of an op's first operand, or of its result where it has none, that are
    compiled."""
    found = set()
    for text in DEFINITIONS[op].examples:
        first = next(_element_types(text), None)
        for dtype in () if first is None else _TYPES_OF_ELEMENTS:
            if dtype not in found and is_compiled(retyped(text, first, dtype.name), op):
                found.add(dtype)
    return found


def _named(types: Iterable[DType]) -> str:
    """Types by their groups, or one by one where a group is not complete."""
    types = set(types)
    words = []
    for name, group in _GROUPS.items():
        if types.issuperset(group):
            words.append(name)
        else:
            words += [d.name for d in group if d in types]
    return " ".join(words)


def _targets(op: str) -> str:
    if op == "stablehlo.dot_general":
        return (
            f"CPU, GPU; complex ones of more than {LARGE_PRODUCT // 8:,} products of numbers "
            "stay with cuBLAS on GPUs"
        )
    if op in LEFT:
        return f"CPU; {LEFT[op]}"
    if op.startswith("lapack."):
        return "CPU; programs for GPUs have no calls of LAPACK"
    return "CPU, GPU"


def page() -> str:
    """The whole of docs/coverage.md."""
    lines = [_INTRODUCTION, "| op | types | targets |", "| --- | --- | --- |"]
    for op in sorted(DEFINITIONS):
        lines.append(f"| `{op}` | {_named(types_of(op))} | {_targets(op)} |")
    only_complex = sorted(OPS_IN_PARTS - DEFINITIONS.keys())
    lines += [f"| `{op}` | complex | {_NOTES[op]} |" for op in only_complex]
    lines += ["", _LOOPS, "| why | ops |", "| --- | --- |"]
    by_reason = defaultdict(list)
    for op, reason in LEFT_TO_XLA.items():
        by_reason[reason].append(f"`{op}`")
    lines += [
        f"| {reason} | {', '.join(sorted(ops))} |" for reason, ops in sorted(by_reason.items())
    ]
    return "\n".join([*lines, "", _TYPES])


_INTRODUCTION = """\
# Which ops are compiled

Written by `scripts/coverage.py` from the registry of ops (`hlo_mlc/ops/registry.py`); a test holds
it to that.

Types are those of an op's first operand: *integers* are signed and unsigned ones of 8 to 64 bits,
*packed* those of 4 and 2 bits, which share bytes in memory and are computed as whole ones, *f8* the
forms E3M4, E4M3, E4M3FN, E4M3FNUZ, E4M3B11FNUZ, E5M2 and E5M2FNUZ, *scale* powers of two of the
form E8M0FNU, which have neither zero nor sign, *complex* numbers of two f32 or f64, which are
computed as their two parts.  Whether an op that can be compiled is compiled is decided by what it
costs: `fn.explain()` says so for every program.
"""

_LOOPS = """\
`stablehlo.while`, with whatever in it is compiled, becomes part of a kernel, and so does
`chlo.scan`; `stablehlo.if` and `stablehlo.case` do inside of such loops, and elsewhere where all
branches are cheap.  Functions that a program calls are written out, `stablehlo.composite` as its
decomposition, and a call of `ApproxTopK` as the sort that XLA makes of it on CPUs and GPUs.  What
picks a few places out of sorted rows (medians, the last few) is found without sorting them.  Ops on
symbolic dimensions are compiled for the sizes that a program is called with, by kernels that serve
any number of rows where each row is computed by itself; those whose operands say a shape are what
they are with an attribute, where the operands are constants.  In modules for `compile_stablehlo`
these operands may also say at run time where something is, between arrays of known shapes, which
XLA does not take.  `stablehlo.batch_norm_*`, CHLO's `broadcast_*` and `ragged_dot` (with all groups
for all rows, as JAX does on CPUs), and what StableHLO has given up (`stablehlo.dot`,
`stablehlo.einsum`, `stablehlo.unary_einsum`, `stablehlo.torch_index_select`) are written out there.
Bitcasts between types of different widths are shifts, and complex numbers are sorted by keys of
their parts.

## What is left to XLA, and why
"""

_TYPES = """\
What has no definition (calls of other libraries, infeed and outfeed, tokens, quantized types) is
left to XLA as it is; so are values of f4E2M1FN, and those of f6, which XLA compiles nothing of on
CPUs (JAX 0.10 to 0.12).  Its own sorts of i2 and ui2 write beyond their memory there; ours do not.
"""


if __name__ == "__main__":
    arguments(__doc__, most=0)
    PAGE.write_text(page())
