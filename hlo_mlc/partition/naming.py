"""What a person calls a kernel: what it computes, and the line of the user's code: softmax@nn.py:6.

What is computed is read out of the stages, never out of the names of functions.  Names are for
people alone: a kernel's identity is the hash of what it computes (kernel.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, loads, loads_in, walk
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.ops import OPS
from hlo_mlc.partition.work import Work, multiplies
from hlo_mlc.support.wording import named_at, short_line
from hlo_mlc.tensor.chain import Chain, chain
from hlo_mlc.tensor.classify import contraction, is_map, slides, stride
from hlo_mlc.tensor.core import (
    Branch,
    Loop,
    Nest,
    Stage,
    Step,
    TensorProgram,
    derived,
    derived_of_any_names,
)

_PLACING = frozenset(("broadcast", "copy"))
_PARTS = 2  # that a name lists: with three, it is longer than a column of a table
_MINOR = 0.1  # of the work of the largest: what has less is not named
_FOLDS = {
    "add": "sum",
    "mul": "product",
    "max": "max",
    "larger": "max",
    "min": "min",
    "and": "all",
    "or": "any",
}
_SCANS = {"add": "cumsum", "mul": "cumprod", "max": "cummax", "min": "cummin"}
_POOLS = {"add": "sum_pool", "max": "max_pool", "larger": "max_pool", "min": "min_pool"}
_ARITHMETIC = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "neg": "negate",
    "fma": "multiply",
    "max": "maximum",
    "min": "minimum",
    "select": "select",
    "convert": "convert",
    "abs": "abs",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
}
_KINDS = 3  # of arithmetic in one expression: so many have no name


def kernel_name(program: TensorProgram, locations: Mapping[str, str], others: Iterable[str]) -> str:
    """`softmax@nn.py:6`; only what is computed where no line is known.

    `locations` are those of the buffers that are written, by name; `others` come from all that the
    kernel computes.
    """
    parts = _named(program.steps)
    heaviest = sorted(parts, key=lambda part: -part.work)
    places = (*(locations.get(b.name, "") for part in heaviest for b in part.writes), *others)
    line = next(filter(None, map(short_line, places)), "")
    return named_at(_joined(parts), line)


def role(program: TensorProgram) -> str:
    """What a kernel computes, in a word or two: `softmax`, `matmul+gelu`, `loop(matmul)`."""
    return _joined(_named(program.steps))


def told_apart(names: Iterable[str]) -> list[str]:
    """The same names, those that occurred before with a number: softmax#2@nn.py:6."""
    seen: Counter[str] = Counter()
    result = []
    for name in names:
        seen[name] += 1
        what, at, line = name.partition("@")
        result.append(name if seen[name] == 1 else f"{what}#{seen[name]}{at}{line}")
    return result


@dataclass(frozen=True, slots=True)
class _Part:
    """One thing that a kernel does, how much work that is, and what it writes."""

    what: str
    work: float
    writes: tuple[Buffer, ...]


def _joined(parts: Sequence[_Part]) -> str:
    """Those that matter, in their order: `matmul+softmax`.  What only brings values to their place
    is named where there is nothing else."""
    work: dict[str, float] = {}
    for part in [part for part in parts if part.what not in _PLACING] or parts:
        work[part.what] = work.get(part.what, 0.0) + part.work
    largest = sorted(work, key=lambda what: -work[what])[:_PARTS]
    named = [what for what in work if what in largest and work[what] >= _MINOR * work[largest[0]]]
    return "+".join(named) or "copy"


def _named(steps: Iterable[Step]) -> list[_Part]:
    return [part for step in steps for part in _parts(step)]


def _parts(step: Step) -> Sequence[_Part]:
    if isinstance(step, Nest):
        return _nest_parts(step)
    inner = _named(step.inner)
    heaviest = max(inner, key=lambda part: part.work, default=_Part("copy", 1.0, ()))
    kind = "branch" if isinstance(step, Branch) else "loop"
    what = _joined(inner)
    # A loop of a loop is called a loop: what is inside says more.
    nested = what.startswith(f"{kind}(") and any(part.what == what for part in inner)
    named = what if nested else f"{kind}({what})"
    trips = step.likely_trips if isinstance(step, Loop) else 1
    return [_Part(named, trips * sum(part.work for part in inner), heaviest.writes)]


@derived
def _nest_parts(nest: Nest) -> tuple[_Part, ...]:
    """What is known by a name of its own is one part, whatever else is computed beside it."""
    work = sum(map(_work, nest.stages))
    whole = _known(nest)
    if whole:
        # The widest of what is stored: the last line of it, not that of a sum on the way.
        widest = max(reversed(nest.stages), key=_points)
        return (_Part(whole, work, widest.outputs),)
    parts: list[_Part] = []
    for stage in nest.stages:
        what = _fold(stage) if not is_map(stage) else _map(stage)
        if parts and is_map(stage) and parts[-1].what in _PRODUCTS:
            before = parts.pop()  # what is done with a product while it is in registers
            what = f"{before.what}+{what}"
            parts.append(_Part(what, before.work + _work(stage), stage.outputs))
        else:
            parts.append(_Part(what, _work(stage), stage.outputs))
    return tuple(parts)


_PRODUCTS = frozenset(("matmul", "matvec", "conv"))


def _known(nest: Nest) -> str:
    """The name of several stages that are one thing to a person; "" for others."""
    folds = [stage for stage in nest.stages if stage.combiner is not None and stage.scan is None]
    kinds = [_FOLDS.get(stage.combiner.name) for stage in folds]
    linked = isinstance(chain(nest), Chain)
    if linked and not ("max" in kinds and any(_uses(fold.terms, "exp") for fold in folds)):
        between = _function([a.value for stage in nest.stages[:-1] for a in stage.assigns])
        return "+".join(filter(None, ("matmul", between, "matmul")))
    if linked:
        return "attention"
    if "max" in kinds and "sum" in kinds[kinds.index("max") :]:
        total = folds[kinds.index("sum", kinds.index("max"))]
        if _uses(total.terms, "exp"):
            after = [a.value for stage in nest.stages for a in stage.assigns]
            if not _uses(after, "log"):
                return "softmax"
            widest = max(_points(stage) for stage in nest.stages)
            return (
                "log_softmax"
                if any(is_map(s) and _points(s) == widest for s in nest.stages)
                else "logsumexp"
            )
    squares = [
        stage
        for stage in folds
        if stage.combiner.name == "add" and any(map(_is_square, stage.terms))
    ]
    values = [a.value for stage in nest.stages for a in stage.assigns]
    if squares and _uses(values, "rsqrt", "sqrt"):
        means = [
            s
            for s in folds
            if s.combiner.name == "add" and any(not _is_square(term) for term in s.terms)
        ]
        return "layer_norm" if means else "rms_norm"
    return ""


@derived_of_any_names
def _fold(stage: Stage) -> str:
    if stage.sort is not None:
        (axis,), place, at = stage.reduce_axes, stage.sort.place, stage.sort.at
        if loads(at) or place not in at.free:
            return "order_statistics"
        return "top_k" if place.extent < axis.extent else "sort"
    if stage.procedure is not None:
        return "steps"
    combiner = stage.combiner
    if stage.scan is not None:
        return _SCANS.get(combiner.name, "scan")
    if multiplies(stage) and not all(map(_is_square, stage.terms)):
        if slides(stage):
            return _with_epilogue("conv", stage)
        if contraction(stage) is not None:
            return _with_epilogue("matmul", stage)
        if _is_matvec(stage):
            return _with_epilogue("matvec" if stage.axes else "dot", stage)
    if slides(stage):
        return _POOLS.get(combiner.name, "pool")
    if (
        len(stage.accumulators) > 1
        and any(
            isinstance(node, Apply) and node.op in ("gt", "lt", "ge", "le")
            for node in walk(*combiner.results)
        )
        and not stage.accumulators[1].dtype.is_float
    ):
        largest = any(
            isinstance(node, Apply) and node.op in ("gt", "ge")
            for node in walk(combiner.results[0])
        )
        return "argmax" if largest else "argmin"
    what = _FOLDS.get(combiner.name, "sum" if _uses(combiner.results, "add") else "reduce")
    inside = _function(stage.terms)
    return f"{inside}+{what}" if inside in _FUNCTIONS else what


def _is_matvec(stage: Stage) -> bool:
    """Whether one factor is the same for all results, or there is one result alone."""
    (term,) = stage.terms[:1]
    return any(
        {*stage.axes}.isdisjoint(factor.free) and {*stage.reduce_axes} & factor.free
        for factor in term.args
    )


def _with_epilogue(what: str, stage: Stage) -> str:
    """With what is done to each result: `matmul+gelu`."""
    after = _function([a.value for a in stage.assigns])
    return f"{what}+{after}" if after else what


@derived_of_any_names
def _map(stage: Stage) -> str:
    """An element for an element: by what is computed of it, else by how it moves."""
    values = [a.value for a in stage.assigns]
    if any(loads(i) for a in stage.assigns for i in a.indices):
        return "scatter"
    what, read = _function(values), tuple(loads_in(*values))
    if any(loads(i) for load in read for i in load.indices):
        return "gather" if what in ("", "select") or Work.of(stage).only_moves else f"gather+{what}"
    if what not in ("", "select", "convert"):
        return what
    if not stage.axes:
        return what or "copy"
    last = stage.axes[-1]
    steps = {stride(load, last) for load in read}
    if what == "select" and len(stage.inputs) > 1:
        return "concatenate" if not any(_uses_values(v) for v in values) else "select"
    if -1 in steps:
        return "reverse"
    if steps & {0, 1} == steps:
        if what == "select" and any(load.guard is not None for load in read):
            return "pad"
        return what or ("broadcast" if 0 in steps else "copy")
    return what or "transpose"


def _uses_values(value: Expr) -> bool:
    """Whether it selects by what is computed, rather than by where it is."""
    return any(
        loads(node.args[0])
        for node in walk(value)
        if isinstance(node, Apply) and node.op == "select"
    )


def _function(values: Iterable[Expr]) -> str:
    """The best known of the functions that are computed, or what arithmetic; "" for none."""
    nodes = [node for node in walk(*values) if isinstance(node, Apply) and node.dtype != INDEX]
    ops = {node.op for node in nodes}
    if {"xor", "shl", "shr_logical"} <= ops:
        return "random"
    errors = [node.args[0] for node in nodes if node.op in ("erf", "erfc")]
    if errors:
        return "gelu" if any(_is_factor(_unscaled(e), nodes) for e in errors) else "erf"
    if any(node.op in ("tanh", "logistic") and _is_polynomial(node.args[0]) for node in nodes):
        return "gelu"  # as it is approximated
    if any(
        node.op == "mul"
        and any(
            a.op == "logistic" and a.args[0] is b
            for a, b in (node.args, node.args[::-1])
            if isinstance(a, Apply)
        )
        for node in nodes
    ):
        return "silu"
    for op, name in (("tanh", "tanh"), ("logistic", "sigmoid")):
        if op in ops:
            return name
    functions = [op for op in ops if op in _FUNCTIONS]
    if functions:
        return max(sorted(functions), key=lambda op: OPS[op].cost)
    if any(
        node.op == "max"
        and node.dtype.is_float
        and any(isinstance(a, Const) and a.value == 0 for a in node.args)
        for node in nodes
    ):
        return "relu"
    arithmetic = Counter(_ARITHMETIC[node.op] for node in nodes if node.op in _ARITHMETIC)
    if len(arithmetic) >= _KINDS:
        return "elementwise"
    return min(
        arithmetic, key=lambda op: (-arithmetic[op], op), default="elementwise" if ops else ""
    )


_FUNCTIONS = frozenset(
    name
    for name, op in OPS.items()
    if op.arity <= 2 and op.accuracy.value == OPS["exp"].accuracy.value
) - {"rsqrt"}


def _is_polynomial(value: Expr) -> bool:
    """Whether something in it is a product of two things that are not known."""
    return any(
        isinstance(node, Apply)
        and node.op == "mul"
        and not any(isinstance(a, Const) for a in node.args)
        for node in walk(value)
    )


def _unscaled(value: Expr) -> Expr:
    """What a value is a constant multiple of, in whatever type."""
    while isinstance(value, Apply):
        factors = [a for a in value.args if not isinstance(a, Const)]
        if len(factors) != 1 or value.op not in ("mul", "div", "neg", "convert"):
            break
        (value,) = factors
    return value


def _is_factor(value: Expr, nodes: Iterable[Apply]) -> bool:
    """Whether a multiple of a value is multiplied by something that is computed."""
    return any(
        value in map(_unscaled, node.args[:2])
        and not any(isinstance(a, Const) for a in node.args[:2])
        for node in nodes
        if node.op in ("mul", "fma")
    )


def _is_square(term: Expr) -> bool:
    return isinstance(term, Apply) and term.op == "mul" and term.args[0] is term.args[1]


def _uses(values: Iterable[Expr], *ops: str) -> bool:
    return any(isinstance(node, Apply) and node.op in ops for node in walk(*values))


def _points(stage: Stage) -> int:
    return math.prod(v.extent for v in stage.axes)


def _work(stage: Stage) -> float:
    """What it costs, roughly: how much of its time each part takes."""
    work = Work.of(stage)
    # A multiply-add and four bytes take about as long as an operation, in vectors.
    return work.operations + work.products + work.moved_bytes / 4 + 1
