"""What XLA needs to compute the expressions of a stage: in vectors, by our operations, or by a call
of a function for every element."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.expr.core import Apply, Expr, walk
from hlo_mlc.expr.dtypes import F64
from hlo_mlc.expr.ops import OPS, ScalarOp
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.work import operations_of, rotates
from hlo_mlc.target.rates import Rates
from hlo_mlc.tensor.classify import divides_integers
from hlo_mlc.tensor.core import Stage


def computing_ratio(stage: Stage, rates: Rates) -> float:
    """XLA's time / ours for what a stage computes."""
    ours = theirs = 0.0
    for node in walk(*stage.expressions):
        if isinstance(node, Apply) and (each := operations_of(node)):
            ours += each
            theirs += each * _ratio_of(node, rates)
    return theirs / ours if ours else rates.xla_arithmetic


def _ratio_of(node: Apply, rates: Rates) -> float:
    """The same of an operation; nothing where XLA calls a function, which takes it another time."""
    op = OPS[node.op]
    if divides_integers(node):
        return figure(f"integer_division_{node.dtype.bytes}")
    if not node.dtype.is_float or not (op.xla_extra or called_ns(node)):
        return rates.xla_arithmetic
    if called_ns(node):
        return 0.0
    return _times_as_many(op) * rates.xla_exp / _times_as_many(OPS["exp"])


def _times_as_many(op: ScalarOp) -> float:
    """How many times our operations for a function XLA's are."""
    ours = op.cost if op.operations is None else op.operations[0]
    return 1 + op.xla_extra / ours


def each_called_ns(expressions: Sequence[Expr], rates: Rates) -> float:
    """What one thread of XLA's takes for the functions that it calls for an element."""
    nodes = (node for node in walk(*expressions) if isinstance(node, Apply))
    return sum(map(called_ns, nodes)) * rates.one_by_one


def called_ns(node: Apply) -> float:
    """The same for one operation where this was measured; 0 for what it has vectors of."""
    if rotates(node):
        return figure("rotation_ns")
    return OPS[node.op].xla_ns[node.dtype is F64] if node.dtype.is_float else 0.0
