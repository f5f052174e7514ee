"""Powers with a literal exponent: which become products and roots, and that nothing changes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.rewrite import apply_rules, eliminate_dead_nodes
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph
from hlo_mlc.passes.powers import POWER_RULES

# What they become, constants left out.
WRITTEN_OUT = {
    -2.0: ["divide", "multiply"],
    -1.5: ["rsqrt", "divide", "compare", "select"],
    -1.0: ["divide"],
    -0.5: ["rsqrt", "abs", "compare", "select"],
    0.5: ["sqrt", "abs", "compare", "select"],
    1.5: ["sqrt", "multiply", "compare", "select"],
    2.0: ["multiply"],
    3.0: ["multiply", "multiply"],
}


def _power(read: Callable[[str, str], Graph], dtype: str, exponent: float, size: int) -> Graph:
    t = f"tensor<{size}x{dtype}>"
    return read(
        f"%a: {t}",
        f"""%c = stablehlo.constant dense<{exponent}> : {t}
      %0 = stablehlo.power %a, %c : {t}
      return %0 : {t}""",
    )


def _written_out(graph: Graph) -> Graph:
    after = eliminate_dead_nodes(apply_rules(graph, POWER_RULES))
    verify_graph(after)
    return after


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("exponent", WRITTEN_OUT)
def test_values_and_special_values(
    exponent: float, dtype: str, read: Callable[[str, str], Graph], ops_of: Callable
) -> None:
    numpy = np.dtype(f"float{dtype[1:]}")
    info = np.finfo(numpy)
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1, -1, info.max, -info.max, info.tiny, 2**0.5]
    magnitudes = np.exp2(np.linspace(np.log2(info.tiny), np.log2(info.max) - 1e-3, 1000))
    values = np.concatenate([special, magnitudes, -magnitudes]).astype(numpy)
    graph = _power(read, dtype, exponent, len(values))
    after = _written_out(graph)
    assert [op for op in ops_of(after) if op != "constant"] == WRITTEN_OUT[exponent]
    with np.errstate(all="ignore"):
        (result,) = evaluate_graph(after, [values])
        expected = np.power(values.astype(np.longdouble), exponent).astype(numpy)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(expected)[number])
    normal = (np.abs(expected) >= info.tiny) & np.isfinite(expected)
    np.testing.assert_array_equal(result[~np.isfinite(expected)], expected[~np.isfinite(expected)])
    np.testing.assert_allclose(result[normal], expected[normal], rtol=2 * info.eps)


@pytest.mark.parametrize(("dtype", "exponent"), [("f32", 2.5), ("f32", -3.0), ("bf16", 2.0)])
def test_other_powers_stay(dtype: str, exponent: float, read: Callable[[str, str], Graph]) -> None:
    graph = _power(read, dtype, exponent, 3)
    assert apply_rules(graph, POWER_RULES) is graph
