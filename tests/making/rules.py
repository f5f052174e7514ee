"""What rewrite rules are to make of small functions, which then mean the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr.dtypes import Kind, TensorType
from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.rewrite import Rule, apply_rules, eliminate_dead_nodes
from hlo_mlc.graph.text import format_graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph

Read = Callable[[str, str], Graph]
"""The graph of a function of these arguments with this body."""
Rules = Mapping[str, Sequence[Rule]]

F = "tensor<2x3xf32>"
SAME_F = f"return %a : {F}"


@dataclass(frozen=True, slots=True)
class Case:
    """`rule` turns a function of `arguments` from `before` into `after`."""

    rule: str
    arguments: str
    before: str
    after: str

    def check(self, rules: Rules, read: Read) -> None:
        """The rules come to `after`, which computes the same, down to signs of zeros."""
        before = read(self.arguments, self.before)
        after = eliminate_dead_nodes(apply_rules(before, rules))
        verify_graph(after)
        assert _lines(after) == _lines(read(self.arguments, self.after))
        generator = np.random.default_rng(0)
        arrays = [_sample(value.type, generator) for value in before.parameters]
        for result, expected in zip(
            evaluate_graph(after, arrays), evaluate_graph(before, arrays), strict=True
        ):
            np.testing.assert_array_equal(result, expected)
            signs, those_before = (np.signbit(a.astype(float)) for a in (result, expected))
            np.testing.assert_array_equal(signs, those_before)


def names(rules: Rules) -> set[str]:
    """How the rules are called."""
    return {rule.__name__ for several in rules.values() for rule in several}


def _lines(graph: Graph) -> str:
    return re.sub(r"  # .*", "", format_graph(graph))


def _sample(tensor: TensorType, generator: np.random.Generator) -> np.ndarray:
    numpy_type = tensor.dtype.numpy
    if tensor.dtype.kind is Kind.BOOL:
        return generator.random(tensor.shape) < 0.5
    if tensor.dtype.is_integer:
        # Scalars are where to begin: at the first element, which every array has.
        most = 100 if tensor.shape else 1
        return generator.integers(0, most, tensor.shape).astype(numpy_type)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.25, 1e30])
    return generator.choice(special, tensor.shape).astype(numpy_type)
