"""Custom calls whose meaning is known: functions of LAPACK and BLAS, by the names of their targets,
and XLA's own for the first few of rows.

A call becomes a node of an op of ours, `lapack.potrf` for instance, that is written back as the
call it came from.  The layouts that a call asks for are XLA's business: values are what they are,
however they lie in memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hlo_mlc.graph.core import Attribute, Node

# Of f32 and f64, and of complex numbers of these.
_FUNCTIONS = ("potrf", "trsm", "getrf", "geqrf")
_REAL_FUNCTIONS = ("orgqr", "ormqr", "syevd")
_TARGETS: Mapping[str, str] = {
    **{
        f"lapack_{letter}{function}_ffi": f"lapack.{function}"
        for letters, functions in (("sdcz", _FUNCTIONS), ("sd", _REAL_FUNCTIONS))
        for letter in letters
        for function in functions
    },
    **{
        f"lapack_{letter}{function}_ffi": f"lapack.{of_reals}"
        for letter in "cz"
        for function, of_reals in (("ungqr", "orgqr"), ("unmqr", "ormqr"), ("heevd", "syevd"))
    },
}
# Those with one answer, which more exact numbers make more exact: vectors of `syevd` or `gesdd` may
# turn round.
_WITH_ONE_ANSWER = re.compile(
    r"lapack_([sdcz])((?:potrf|trsm|getrf|gtsv|geqrf|orgqr|ungqr|ormqr|unmqr)_ffi)"
)
# What a call may say of itself besides its options, which JAX keeps where the version of the
# interface is not asked for.
_KNOWN = frozenset(
    (
        "call_target_name",
        "api_version",
        "backend_config",
        "called_computations",
        "has_side_effect",
        "operand_layouts",
        "result_layouts",
        "output_operand_aliases",
    )
)
_OPTION = re.compile(r"(\w+) = (\d+) : ui8")
_FLAG = re.compile(r"(\w+) = (true|false)")
DIALECT = "lapack"


def library_op(attributes: Mapping[str, Attribute]) -> str:
    """The op that a custom call with these attributes is; "" where it is none that is known."""
    named = {name for name in attributes if "." not in name}
    if (
        not named <= _KNOWN
        or attributes.get("has_side_effect")
        or attributes.get("backend_config")
        or attributes.get("called_computations")
    ):
        return ""
    return _TARGETS.get(attributes.get("call_target_name", ""), "")


def target_in_f64(target: str) -> str:
    """The target that does in f64, or in complex numbers of it, what this one does; "" where there
    is none, or where it may give another answer."""
    found = _WITH_ONE_ANSWER.fullmatch(target)
    return f"lapack_{'d' if found[1] in 'sd' else 'z'}{found[2]}" if found else ""


def approximate_top_k(attributes: Mapping[str, Attribute]) -> tuple[str, int] | None:
    """The comparator that a call of `ApproxTopK` sorts by and the dimension that it sorts along,
    where XLA does sort; None where it may leave some elements out.

    Source: ApproxTopKFallback in xla/hlo/builder/lib/approx_topk.cc.
    """
    config = attributes.get("mhlo.backend_config", "")
    dimension = re.search(r"reduction_dim = (\d+) : i64", config)
    if dimension is None or "is_fallback = true" not in config:
        return None
    (comparator,) = attributes["called_computations"]
    return comparator.removeprefix("@"), int(dimension[1])


def options(node: Node) -> dict[str, str]:
    """The letters that a call hands to the library, by the names of its parameters."""
    config = node.attributes.get("mhlo.backend_config", "")
    return {name: chr(int(code)) for name, code in _OPTION.findall(config)}


def flags(node: Node) -> dict[str, bool]:
    """What a call is told to do or not, by the names of its parameters."""
    config = node.attributes.get("mhlo.backend_config", "")
    return {name: given == "true" for name, given in _FLAG.findall(config)}


def is_lower(node: Node) -> bool:
    """Whether lower triangles of matrices are read, and written where there are factors."""
    if node.op in ("lapack.potrf", "lapack.syevd"):
        return options(node)["uplo"] == "L"
    return node.attributes.get("lower", False)


class TriangularSolve:
    """op(A) X = B or X op(A) = B, as BLAS and StableHLO spell it."""

    def __init__(self, node: Node) -> None:
        if node.op == "lapack.trsm":
            given = options(node)
            self.is_left, self.is_unit = given["side"] == "L", given["diag"] == "U"
            self.is_lower, self.is_transposed = given["uplo"] == "L", given["trans_x"] != "N"
            self.is_adjoint = given["trans_x"] == "C"
        else:
            given = node.attributes
            self.is_left = given.get("left_side", False)
            self.is_lower = given.get("lower", False)
            self.is_unit = given.get("unit_diagonal", False)
            self.is_transposed = given["transpose_a"] != "NO_TRANSPOSE"
            self.is_adjoint = given["transpose_a"] == "ADJOINT"

    def columns(self, node: Node) -> int:
        """How many vectors are solved for with each matrix."""
        return node.operands[1].type.shape[-1 if self.is_left else -2]
