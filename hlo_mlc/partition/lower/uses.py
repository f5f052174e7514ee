"""How nodes use each other's results: how often, and which become part of their users."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping

from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import uses_among
from hlo_mlc.ops.registry import ELEMENTWISE, moves

# Terms of a reduction that is written out: lanes along so short a row would stay empty, while
# those along its results are full.  With 5 and 6, softmax and logsumexp of 20,000 rows took 0.2 to
# 0.6 of the time, sums and distances 0.5 to 1.0, products of two arrays 0.9 to 1.7; with 8, sums
# took 1.1 to 1.4 of it (nbody, rays).  This and what follows is decided before there are stages
# that the cost model (costs.py) could be asked about; the names are cases of the bench.
SHORT_FOLD = 6
# And of one whose result goes back to each of its terms, as in softmax and norms: with 8, softmax
# took 0.4 of the time (encoder_captured).
SHORT_ROW = 8
# Terms of a product of matrices, of which there are at least so many and whose results lie side by
# side as the matrices do, and so do both factors, but for the terms: with 2, 3, 4, 6 and 8 terms
# products along 75,000 to 1,000 matrices took 0.39, 0.31, 0.45, 0.38 and 0.54 of the time, with 16
# 0.6; where the terms lie within, 0.24, 0.25, 0.34, and 1.14 with 6 (tiny_matmuls, pixelwise).
SHORT_PRODUCT, SHORT_PRODUCT_WITHIN, MATRICES = 8, 4, 16
# Terms and results of a row that is multiplied by one matrix, as points are: 200,000 rows by 2 x 2,
# 3 x 3, 4 x 4, 3 x 4 and 4 x 3 took 0.57, 0.66, 0.63, 0.72 and 0.63 of the time in f32, 0.9 to 1.0
# in f64; with AVX2 0.66, 0.87, 0.97, 1.02 and 0.99, a million by 3 x 3 0.5; 6 x 6 took 0.85, with
# AVX2 1.7.  With tanh of the results behind it took 0.2 to 0.35 of the time (rotated_points).
SMALL_MATRIX = 4
# An array of so many bytes goes to memory and back: where it is only read in shifted parts, as
# stencils are, it is computed for each of them as long as that takes no more operations in all.
# What parts have in common is computed once (black_scholes, attention_long).
FAR_BYTES, SHIFTED_LIMIT = 4 << 20, 64
# How often an element is read from which on it pays to store what was joined, looked up, or lies
# with gaps (looked_up_rows).
REUSED = 4
# Ops that are read through one another; each takes a few calls on the stack of the interpreter
# (random_walk).
DEPTH_LIMIT = 64


def written_out(nodes: Iterable[Node], any_rows: bool = False) -> frozenset[Node]:
    """Of nodes in order, the reductions and products of so few terms that they are part of what
    reads their results, wherever it is; with `any_rows`, none that sums along a first dimension."""
    nodes = tuple(node for node in nodes if not (any_rows and _folds_rows(node)))
    terms = {node: _terms(node) for node in nodes if node.op == "stablehlo.reduce"}
    short = {node for node, count in terms.items() if 0 < count <= SHORT_FOLD}
    products = [node for node in nodes if _is_short_product(node)]
    longer = any(SHORT_FOLD < count <= SHORT_ROW for count in terms.values())
    by_matrix = [node for node in nodes if _is_by_small_matrix(node)]
    if not products and not by_matrix and not longer:
        return frozenset(short)
    uses = uses_among(nodes)
    short.update(node for node in products if _lies_along_matrices(node, uses))
    short.update(node for node in by_matrix if _stays_in_rows(node, uses))
    if not longer:
        return frozenset(short)
    in_rows: set[Value] = set()  # what is made of reductions beyond SHORT_FOLD
    for node in nodes:
        is_in_row = any(value in in_rows for value in node.operands)
        if SHORT_FOLD < terms.get(node, 0) <= SHORT_ROW and (is_in_row or _goes_back(node, uses)):
            short.add(node)
            is_in_row = True
        if is_in_row and (node in short or _is_pointwise(node)):
            in_rows.update(node.results)
    return frozenset(short)


def users_behind(
    value: Value, uses: Mapping[Value, tuple[Node, ...]], through: Callable[[Node], bool]
) -> Iterator[tuple[Node, Value]]:
    """The users of a value, and of the results of those that one looks `through`, each with what
    it reads; no deeper than values are read through one another."""
    seen, front = {value}, [value]
    for _ in range(DEPTH_LIMIT):
        behind = []
        for read in front:
            for user in uses.get(read, ()):
                yield user, read
                if through(user) and user.results[0] not in seen:
                    seen.add(user.results[0])
                    behind.append(user.results[0])
        front = behind


def _folds_rows(node: Node) -> bool:
    names = {
        "stablehlo.reduce": "dimensions",
        "stablehlo.dot_general": "lhs_contracting_dimensions",
    }
    return node.op in names and not node.opaque and 0 in node.attributes[names[node.op]]


def _terms(reduction: Node) -> int:
    if reduction.opaque:
        return 0
    shape = reduction.operands[0].type.shape
    return math.prod(shape[d] for d in reduction.attributes["dimensions"])


def _is_short_product(node: Node) -> bool:
    if node.op != "stablehlo.dot_general" or node.opaque:
        return False
    shape, axes = node.operands[0].type.shape, node.attributes["lhs_contracting_dimensions"]
    return (
        bool(node.attributes["lhs_batching_dimensions"])
        and 0 < math.prod(shape[d] for d in axes) <= SHORT_PRODUCT
    )


def _is_by_small_matrix(node: Node) -> bool:
    """Whether a product is of many short rows, side by side in memory, and one small matrix."""
    if node.op != "stablehlo.dot_general" or node.opaque:
        return False
    rows, matrix = (value.type.shape for value in node.operands)
    (*many, terms), results = rows or (0,), node.results[0].type.shape[-1:]
    return (
        len(matrix) == 2
        and not node.attributes["lhs_batching_dimensions"]
        and tuple(node.attributes["lhs_contracting_dimensions"]) == (len(rows) - 1,)
        and 1 <= terms <= SMALL_MATRIX
        and all(1 < count <= SMALL_MATRIX for count in results)
        and math.prod(many) >= MATRICES
    )


def _stays_in_rows(product: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """Whether no transpose reads the result, nor another product: templates of products store
    columns in 0.4 of the time that a map takes, and compute both products together."""
    last = len(product.results[0].type.shape) - 1
    return not any(
        user.op == "stablehlo.dot_general"
        or (user.op == "stablehlo.transpose" and user.attributes["permutation"][-1] != last)
        for user in uses.get(product.results[0], ())
    )


def _lies_along_matrices(product: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    """Whether neighbours in memory are elements of different matrices at the same place, in what
    becomes of the results and in both factors but for the terms of a sum."""
    users, sides = uses.get(product.results[0], ()), ("lhs", "rhs")
    last = {
        user.attributes["permutation"][-1] if user.op == "stablehlo.transpose" else -1
        for user in users
    }
    batch = [product.attributes[f"{side}_batching_dimensions"] for side in sides]
    if len(last) != 1 or not 0 <= (along := last.pop()) < len(batch[0]):
        return False
    most = SHORT_PRODUCT
    for side, factor, dims in zip(sides, product.operands, batch, strict=True):
        shape, summed = factor.type.shape, product.attributes[f"{side}_contracting_dimensions"]
        inner = range(dims[along] + 1, len(shape))
        if shape[dims[along]] < MATRICES or not {*inner} <= {*summed}:
            return False
        if inner:
            most = SHORT_PRODUCT_WITHIN
    return math.prod(shape[d] for d in summed) <= most


def _goes_back(reduction: Node, uses: Mapping[Value, tuple[Node, ...]]) -> bool:
    shape = reduction.operands[0].type.shape
    return any(
        _is_pointwise(user) and any(value.type.shape == shape for value in user.results)
        for result in reduction.results
        for user, _ in users_behind(result, uses, _is_pointwise)
    )


def _is_pointwise(node: Node) -> bool:
    return not node.opaque and (moves(node) or node.op in ELEMENTWISE)


def times_read(product: Node, value: Value) -> float:
    """How often a product of two tensors, or a convolution, reads each element of one of them."""
    if product.op == "stablehlo.convolution":
        kernel = product.operands[1].type
        depth = kernel.size // max(
            1, kernel.shape[product.attributes["kernel_output_feature_dimension"]]
        )
    else:
        lhs = product.operands[0].type.shape
        depth = math.prod(lhs[d] for d in product.attributes["lhs_contracting_dimensions"])
    return product.results[0].type.size * depth / max(1, value.type.size)
