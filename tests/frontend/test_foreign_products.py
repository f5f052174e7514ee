"""Products that other frameworks write by letters, or of rows that lie in groups."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc import compile_stablehlo
from hlo_mlc.support.errors import UnsupportedOpError
from making.foreign import SIZES, check, random


@pytest.mark.parametrize(
    "config",
    [
        "ab,bc->ac",
        "ab,bc->ca",
        "ab,bc",
        "ab,cb->abc",
        "ab,cd->dbca",
        "abc,abd->adc",
        "abc,bd->d",
        "aab,bc->ac",
        "aba,ab->b",
        "abab,b->a",
        "ab,ab->",
        ",ab->ba",
        "...ab,...bc->...ac",
        "...a,a->...",
        "...a,...b",
        "a...,...b->b...a",
    ],
)
@pytest.mark.parametrize("element", ["f32", "f64", "i32", "complex<f32>"])
def test_sums_of_products_by_letters(config: str, element: str) -> None:
    dtype = {"f32": np.float32, "f64": np.float64, "i32": np.int32}.get(element, np.complex64)
    size = {"a": 3, "b": 4, "c": 2, "d": 5}
    rest = iter(((2, 1), (1, 6))) if config.count("...") > 1 else iter(((2, 6),) * 2)
    shapes = []
    for term in config.partition("->")[0].split(","):
        before, dots, behind = term.partition("...")
        shapes.append(
            (*(size[c] for c in before), *(next(rest) if dots else ()), *(size[c] for c in behind))
        )
    x, y = (
        (4 * random(*shape) + (1j if dtype is np.complex64 else 0)).astype(dtype)
        for shape in shapes
    )
    wanted = np.einsum(config, x, y)
    one, other, result = ("x".join((*map(str, a.shape), element)) for a in (x, y, wanted))
    check(
        f"""func.func @main(%x: tensor<{one}>, %y: tensor<{other}>) -> tensor<{result}> {{
      %0 = stablehlo.einsum %x, %y, config = "{config}"
        : (tensor<{one}>, tensor<{other}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}""",
        lambda x, y: np.einsum(config, x, y),
        x,
        y,
        rtol=1e-4,
    )


@pytest.mark.parametrize("config", ["abc->ca", "abc->b", "abb->ba", "aaa->a", "a...->...a", "bb"])
def test_sums_by_letters(config: str) -> None:
    shape = {
        "abc->ca": (3, 4, 2),
        "abc->b": (3, 4, 2),
        "a...->...a": (3, 4, 2),
        "abb->ba": (3, 4, 4),
        "aaa->a": (3, 3, 3),
        "bb": (4, 4),
    }[config]
    x = random(*shape)
    x[..., 0] = np.nan  # which stays where it is
    one, result = ("x".join((*map(str, a.shape), "f32")) for a in (x, np.einsum(config, x)))
    check(
        f"""func.func @main(%x: tensor<{one}>) -> tensor<{result}> {{
      %0 = stablehlo.unary_einsum %x, config = "{config}" : (tensor<{one}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}""",
        lambda x: np.einsum(config, x),
        x,
    )


def test_a_batch_of_any_size_by_letters() -> None:
    function = check(
        """func.func @main(%x: tensor<?x5x4xf32>, %y: tensor<3x4xf32>)
        -> tensor<3x?x5xf32> {
      %0 = stablehlo.einsum %x, %y, config = "abc,dc->dab"
        : (tensor<?x5x4xf32>, tensor<3x4xf32>) -> tensor<3x?x5xf32>
      return %0 : tensor<3x?x5xf32>
    }""",
        lambda x, y: np.einsum("abc,dc->dab", x, y),
        random(2, 5, 4),
        random(3, 4),
    )
    x, y = random(7, 5, 4), random(3, 4)
    np.testing.assert_allclose(
        function(x, y)[0], np.einsum("abc,dc->dab", x, y), rtol=1e-5, atol=1e-5
    )


def test_a_diagonal_of_any_size_by_letters() -> None:
    text = """func.func @main(%x: tensor<3x?x?xf32>) -> tensor<?x3xf32> {
      %0 = stablehlo.unary_einsum %x, config = "abb->ba" : (tensor<3x?x?xf32>) -> tensor<?x3xf32>
      return %0 : tensor<?x3xf32>
    }"""
    check(text, lambda x: np.einsum("abb->ba", x), random(3, 4, 4))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("ab,bc->ad", "result only"),
        ("ab->ab", "of 1 operands"),
        ("abc,bc->a", "2 dimensions"),
        ("a1,bc->a", "2 dimensions"),
    ],
)
def test_letters_that_say_nothing(config: str, said: str) -> None:
    with pytest.raises(UnsupportedOpError, match=said):
        compile_stablehlo(f"""func.func @main(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>)
            -> tensor<2x4xf32> {{
          %0 = stablehlo.einsum %x, %y, config = "{config}"
            : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
          return %0 : tensor<2x4xf32>
        }}""")


def in_groups(sizes: np.ndarray) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def rows_in_groups(x: np.ndarray, w: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[m, k], [g, k, n], [g] -> [m, n]"""
    result = np.zeros((len(x), w.shape[2]), x.dtype)
    for rows, weights in zip(in_groups(sizes), w, strict=True):
        result[rows] = x[rows] @ weights
    return result


def sums_in_groups(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[k, m], [k, n], [g] -> [g, m, n]"""
    return np.stack([x[rows].T @ y[rows] for rows in in_groups(sizes)])


def of_groups(operands: str, result: str, *dimensions: object) -> str:
    """A product of which these are the dimensions: of batches, that are summed up, in groups, of
    groups."""
    names = ("batching", "contracting")
    fields = [
        f"{side}_{name}_dimensions = {value}"
        for name, values in zip(names, (dimensions[:2], dimensions[2:4]), strict=True)
        for side, value in zip(("lhs", "rhs"), values, strict=True)
    ]
    fields += [
        f"lhs_ragged_dimensions = {dimensions[4]}",
        f"rhs_group_dimensions = {dimensions[5]}",
    ]
    lhs, rhs, counts = (f"tensor<{one}>" for one in operands.split())
    return f"""func.func @main(%x: {lhs}, %y: {rhs}, %n: {counts}) -> tensor<{result}> {{
      %0 = "chlo.ragged_dot"(%x, %y, %n) {{
        ragged_dot_dimension_numbers = #chlo.ragged_dot<{", ".join(fields)}>,
        precision_config = [#chlo<precision HIGHEST>, #chlo<precision DEFAULT>]
      }} : ({lhs}, {rhs}, {counts}) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""


def test_rows_that_lie_in_groups() -> None:
    x, w = random(11, 5), random(4, 5, 7)
    x[10], w[1, 2, 3] = np.inf, np.nan  # of no group, of a group without rows
    text = of_groups("11x5xf32 4x5x7xf32 4xi64", "11x7xf32", [], [], [1], [1], [0], [0])
    check(text, rows_in_groups, x, w, SIZES)


@pytest.mark.parametrize("shared", [False, True], ids=["groups of each", "the same groups"])
def test_rows_of_batches_that_lie_in_groups(shared: bool) -> None:
    def rows(x: np.ndarray, w: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        sizes = np.broadcast_to(sizes, (2, 4))
        return np.stack([rows_in_groups(x[:, b].T, w[:, b], sizes[b]) for b in range(2)])

    check(
        of_groups(
            f"5x2x11xf32 4x2x5x7xf32 {'' if shared else '2x'}4xui32",
            "2x11x7xf32",
            *([1], [1], [0], [2], [2], [0]),
        ),
        rows,
        random(5, 2, 11),
        random(4, 2, 5, 7),
        (SIZES if shared else np.stack([SIZES, SIZES[::-1]])).astype(np.uint32),
    )


def test_sums_over_what_lies_in_groups() -> None:
    x, y = random(11, 3), random(11, 7)
    x[10] = np.nan
    text = of_groups("11x3xf32 11x7xf32 4xi32", "4x3x7xf32", [], [], [0], [0], [0], [])
    check(text, sums_in_groups, x, y, SIZES.astype(np.int32))


def test_sums_over_groups_of_each_row_before() -> None:
    def sums(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        return sum(map(sums_in_groups, x, y, sizes))

    check(
        of_groups("2x11x3xf32 2x11x7xf32 2x4xi32", "4x3x7xf32", [], [], [0, 1], [0, 1], [1], []),
        sums,
        random(2, 11, 3),
        random(2, 11, 7),
        np.stack([SIZES, SIZES[::-1]]).astype(np.int32),
    )


def test_batches_that_lie_in_groups_are_batches() -> None:
    check(
        of_groups("6x2x3xf32 6x3x4xf32 2xi32", "6x2x4xf32", [0], [0], [2], [1], [0], []),
        lambda x, y, sizes: x @ y,
        random(6, 2, 3),
        random(6, 3, 4),
        np.array([2, 4], np.int32),
    )


def test_any_number_of_rows_that_lie_in_groups() -> None:
    text = of_groups("?x5xf32 4x5x7xf32 4xi32", "?x7xf32", [], [], [1], [1], [0], [0])
    function = check(text, rows_in_groups, random(11, 5), random(4, 5, 7), SIZES.astype(np.int32))
    x, w, sizes = random(20, 5), random(4, 5, 7), np.array([1, 2, 3, 4], np.int32)
    np.testing.assert_allclose(
        function(x, w, sizes)[0], rows_in_groups(x, w, sizes), rtol=1e-5, atol=1e-5
    )
