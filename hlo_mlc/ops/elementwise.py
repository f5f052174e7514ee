"""Elementwise ops: a result element depends on the operands' elements at the same index.

A row says what an op is as a scalar expression over its operands' elements; the reference, the
lowering and the examples follow from it.  An operand of rank 0 is used for every element, which
only the predicate of `select` and the bounds of `clamp` make use of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.expr.dtypes import U8
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.expr.ops import OPS, Accuracy
from hlo_mlc.graph.core import Node
from hlo_mlc.ops import bits
from hlo_mlc.ops.definition import FewBits, Indices, OpDef, OpKind, Pointwise, Read
from hlo_mlc.ops.packed_integers import packed, unpacked

Build = Callable[[Node, tuple[Expr, ...]], Expr]  # the result from the operands' elements


def _define(
    name: str,
    build: Build,
    examples: Sequence[str],
    supports: Callable[[Node], str] = lambda node: "",
    *,
    cost: int = 1,
    is_exact: bool = True,
    few_bits: FewBits | None = None,
    sources: slice | None = None,
) -> OpDef:
    def reference(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        elements = tuple(Var(f"x{k}", v.type.dtype) for k, v in enumerate(node.operands))
        value = evaluate(build(node, elements), dict(zip(elements, operands, strict=True)))
        return (np.broadcast_to(value, node.results[0].type.shape),)

    def lower(node: Node, reads: Sequence[Read]) -> Pointwise:
        ranks = [len(v.type.shape) for v in node.operands]

        def element(indices: Indices) -> Expr:
            return build(
                node, tuple(read(indices[:rank]) for read, rank in zip(reads, ranks, strict=True))
            )

        return Pointwise((element,))

    return OpDef(
        name,
        OpKind.ELEMENTWISE,
        reference,
        lower,
        supports,
        tuple(examples),
        cost,
        is_exact,
        few_bits,
        sources,
    )


def _example(name: str, operands: Sequence[str], result: str, attributes: str = "") -> str:
    """A function that applies the op once; a type without a shape gets one."""
    types = [t if t.startswith("tensor") else f"tensor<3x7x{t}>" for t in (*operands, result)]
    names = [f"%a{k}" for k in range(len(operands))]
    parameters = ", ".join(f"{n}: {t}" for n, t in zip(names, types[:-1], strict=True))
    return (
        f"func.func @main({parameters}) -> {types[-1]} {{\n"
        f'  %r = "{name}"({", ".join(names)}) {{{attributes}}} : '
        f"({', '.join(types[:-1])}) -> {types[-1]}\n"
        f"  return %r : {types[-1]}\n}}\n"
    )


# Element types of the examples.
_FLOAT = ("f32", "f64", "bf16", "f16")
_SIGNED = ("i32", "i8", "i64")
_INTEGER = (*_SIGNED, "ui8", "ui32", "ui64")
_LOGICAL = ("i1", "i32", "ui8")
_NUMBER = (*_FLOAT, *_INTEGER)
_ANY = (*_NUMBER, "i1")
_SAME, _LAST = FewBits.SAME, FewBits.LAST


def _row(name: str, op: str, types: Sequence[str], few_bits: FewBits | None = None) -> OpDef:
    """An op that is one scalar op."""
    scalar = OPS[op]
    to_bool = scalar.result == "bool"
    examples = [_example(name, [t] * scalar.arity, "i1" if to_bool else t) for t in types]
    return _define(
        name,
        lambda node, elements: apply(op, *elements),
        examples,
        cost=scalar.cost,
        is_exact=scalar.accuracy is not Accuracy.APPROXIMATE,
        few_bits=few_bits,
    )


def _unary(
    name: str, function: Callable[[Expr], Expr], types: Sequence[str], result: str = ""
) -> OpDef:
    """An op of one operand that is composed of scalar ops."""
    examples = [_example(name, [t], result or t) for t in types]
    return _define(name, lambda node, elements: function(elements[0]), examples)


_DIRECTIONS = {"EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le", "GT": "gt", "GE": "ge"}


def _compare(node: Node, elements: tuple[Expr, ...]) -> Expr:
    if node.attributes.get("compare_type") == "TOTALORDER" and elements[0].dtype.is_float:
        elements = tuple(bits.total_order_key(e) for e in elements)
    return apply(_DIRECTIONS[node.attributes["comparison_direction"]], *elements)


def _compare_examples() -> list[str]:
    kinds = {"f32": "FLOAT", "bf16": "FLOAT", "i32": "SIGNED", "ui8": "UNSIGNED", "i1": "UNSIGNED"}
    wanted = [(t, k, d) for t, k in kinds.items() for d in _DIRECTIONS]
    wanted += [(t, "TOTALORDER", d) for t in _FLOAT for d in ("LT", "GE")]
    return [
        _example(
            "stablehlo.compare",
            [t, t],
            "i1",
            f"comparison_direction = #stablehlo<comparison_direction {d}>, "
            f"compare_type = #stablehlo<comparison_type {k}>",
        )
        for t, k, d in wanted
    ]


def _clamp(node: Node, elements: tuple[Expr, ...]) -> Expr:
    low, value, high = elements
    return apply("min", apply("max", value, low), high)


def _convert(node: Node, elements: tuple[Expr, ...]) -> Expr:
    return apply("convert", elements[0], dtype=node.results[0].type.dtype)


def _lower_convert(node: Node, reads: Sequence[Read]) -> Pointwise:
    (read,), source, result = reads, node.operands[0].type, node.results[0].type
    if result.dtype.is_packed:
        return Pointwise(
            (packed(unpacked(read, source, U8) if source.dtype.is_packed else read, result),)
        )
    if source.dtype.is_packed:
        return Pointwise((unpacked(read, source, result.dtype),))
    return Pointwise((lambda indices: apply("convert", read(indices), dtype=result.dtype),))


def _supports_convert(node: Node) -> str:
    source, result = node.operands[0].type.dtype, node.results[0].type.dtype
    if source.is_float and result.is_packed:
        return f"a conversion from {source} to {result} goes by bytes"
    return ""


def _bitcast(node: Node, elements: tuple[Expr, ...]) -> Expr:
    return apply("bitcast", elements[0], dtype=node.results[0].type.dtype)


def _supports_bitcast(node: Node) -> str:
    source, result = node.operands[0].type.dtype, node.results[0].type.dtype
    if source.bits == result.bits:
        return ""
    return f"a bitcast from {source} to {result} splits or joins elements"


def _reduce_precision(node: Node, elements: tuple[Expr, ...]) -> Expr:
    attributes = node.attributes
    return bits.reduce_precision(
        elements[0], attributes["exponent_bits"], attributes["mantissa_bits"]
    )


def _is_infinity(value: float) -> Callable[[Expr], Expr]:
    return lambda x: apply("eq", x, const(value, x.dtype))


def _formats(name: str, pairs: Sequence[tuple[str, int, int]]) -> list[str]:
    return [
        _example(name, [t], t, f"exponent_bits = {e} : i32, mantissa_bits = {m} : i32")
        for t, e, m in pairs
    ]


DEFINITIONS: tuple[OpDef, ...] = (
    # arithmetic
    _row("stablehlo.add", "add", _ANY, _LAST),
    _row("stablehlo.subtract", "sub", _NUMBER, _LAST),
    _row("stablehlo.multiply", "mul", _ANY, _LAST),
    _row("stablehlo.divide", "div", _NUMBER, _LAST),
    _row("stablehlo.remainder", "rem", _NUMBER, _SAME),
    _row("stablehlo.maximum", "max", _ANY, _SAME),
    _row("stablehlo.minimum", "min", _ANY, _SAME),
    _row("stablehlo.power", "pow", _NUMBER, _LAST),
    _row("stablehlo.atan2", "atan2", _FLOAT),
    _row("stablehlo.negate", "neg", _NUMBER, _LAST),
    _row("stablehlo.abs", "abs", (*_FLOAT, *_SIGNED), _LAST),
    _row("stablehlo.sign", "sign", (*_FLOAT, *_SIGNED), _SAME),
    _row("stablehlo.floor", "floor", _FLOAT),
    _row("stablehlo.ceil", "ceil", _FLOAT),
    _row("stablehlo.round_nearest_even", "round_even", _FLOAT),
    _row("stablehlo.round_nearest_afz", "round_away", _FLOAT),
    _unary("chlo.square", lambda x: x * x, _FLOAT),
    _define(
        "chlo.mulhi",
        lambda node, elements: bits.multiply_high(*elements),
        [_example("chlo.mulhi", [t, t], t) for t in _INTEGER],
        cost=4,
    ),
    # transcendental
    _row("stablehlo.sqrt", "sqrt", _FLOAT),
    _row("stablehlo.rsqrt", "rsqrt", _FLOAT),
    _row("stablehlo.cbrt", "cbrt", _FLOAT),
    _row("stablehlo.exponential", "exp", _FLOAT),
    _row("stablehlo.exponential_minus_one", "expm1", _FLOAT),
    _row("stablehlo.log", "log", _FLOAT),
    _row("stablehlo.log_plus_one", "log1p", _FLOAT),
    _row("stablehlo.logistic", "logistic", _FLOAT),
    _row("stablehlo.sine", "sin", _FLOAT),
    _row("stablehlo.cosine", "cos", _FLOAT),
    _row("stablehlo.tan", "tan", _FLOAT),
    _row("stablehlo.tanh", "tanh", _FLOAT),
    _row("chlo.tan", "tan", _FLOAT),
    _row("chlo.asin", "asin", _FLOAT),
    _row("chlo.acos", "acos", _FLOAT),
    _row("chlo.atan", "atan", _FLOAT),
    _row("chlo.sinh", "sinh", _FLOAT),
    _row("chlo.cosh", "cosh", _FLOAT),
    _row("chlo.asinh", "asinh", _FLOAT),
    _row("chlo.acosh", "acosh", _FLOAT),
    _row("chlo.atanh", "atanh", _FLOAT),
    _row("chlo.erf", "erf", _FLOAT),
    _row("chlo.erfc", "erfc", _FLOAT),
    _row("chlo.erf_inv", "erf_inv", _FLOAT),
    _row("chlo.lgamma", "lgamma", _FLOAT),
    _row("chlo.digamma", "digamma", _FLOAT),
    _row("chlo.polygamma", "polygamma", _FLOAT),
    _row("chlo.zeta", "zeta", _FLOAT),
    _row("chlo.bessel_i1e", "bessel_i1e", _FLOAT),
    # bits and logic
    _row("stablehlo.and", "and", _LOGICAL, _SAME),
    _row("stablehlo.or", "or", _LOGICAL, _SAME),
    _row("stablehlo.xor", "xor", _LOGICAL, _SAME),
    _row("stablehlo.not", "not", _LOGICAL, _LAST),
    _row("stablehlo.shift_left", "shl", _INTEGER, _LAST),
    _row("stablehlo.shift_right_logical", "shr_logical", _INTEGER, FewBits.UNSIGNED),
    _row("stablehlo.shift_right_arithmetic", "shr_arithmetic", _INTEGER, FewBits.LAST_IF_SIGNED),
    _row("stablehlo.popcnt", "popcnt", _INTEGER, FewBits.UNSIGNED),
    _row("stablehlo.count_leading_zeros", "clz", _INTEGER, FewBits.UNSIGNED),
    _define(
        "stablehlo.reduce_precision",
        _reduce_precision,
        _formats(
            "stablehlo.reduce_precision",
            (
                ("f32", 5, 10),
                ("f32", 8, 7),
                ("f64", 8, 23),
                ("bf16", 4, 3),
                ("f16", 5, 2),
                ("f32", 11, 52),
            ),
        ),
        cost=12,
    ),
    _define(
        "chlo.next_after",
        lambda node, elements: bits.next_after(*elements),
        [_example("chlo.next_after", [t, t], t) for t in _FLOAT],
        cost=12,
    ),
    # comparison and choice
    _define("stablehlo.compare", _compare, _compare_examples(), few_bits=_SAME),
    _row("stablehlo.is_finite", "is_finite", _FLOAT),
    _unary("chlo.is_inf", bits.is_infinite, _FLOAT, "i1"),
    _unary("chlo.is_pos_inf", _is_infinity(np.inf), _FLOAT, "i1"),
    _unary("chlo.is_neg_inf", _is_infinity(-np.inf), _FLOAT, "i1"),
    _define(
        "stablehlo.select",
        lambda node, elements: apply("select", *elements),
        [
            _example("stablehlo.select", [p, t, t], t)
            for p in ("i1", "tensor<i1>")
            for t in ("f32", "bf16", "i32", "i1")
        ],
        few_bits=_SAME,
        sources=slice(1, None),
    ),
    _define(
        "stablehlo.clamp",
        _clamp,
        [
            _example("stablehlo.clamp", [f"tensor<{t}>", t, f"tensor<{t}>"], t)
            for t in ("f32", "bf16", "i32", "ui8")
        ]
        + [_example("stablehlo.clamp", ["f32"] * 3, "f32")],
        cost=2,
        few_bits=_SAME,
    ),
    # change of type
    replace(
        _define(
            "stablehlo.convert",
            _convert,
            [
                _example("stablehlo.convert", [t], r)
                for t, r in (
                    ("f32", "i32"),
                    ("f32", "ui8"),
                    ("f32", "i1"),
                    ("f32", "bf16"),
                    ("f64", "f32"),
                    ("f64", "i64"),
                    ("bf16", "f32"),
                    ("f16", "i8"),
                    ("i32", "f32"),
                    ("i64", "i8"),
                    ("i8", "ui32"),
                    ("ui64", "f64"),
                    ("i1", "f32"),
                    ("i1", "i32"),
                    ("i32", "i1"),
                    ("f32", "f32"),
                    ("f32", "f8E4M3FN"),
                    ("f32", "f8E5M2"),
                    ("f8E4M3FNUZ", "f32"),
                    ("f8E5M2", "bf16"),
                    ("f8E3M4", "f16"),
                    ("i4", "f32"),
                    ("ui2", "i8"),
                    ("i8", "i4"),
                    ("ui8", "ui2"),
                )
            ],
            _supports_convert,
            few_bits=_LAST,
        ),
        lower=_lower_convert,
    ),
    _define(
        "stablehlo.bitcast_convert",
        _bitcast,
        [
            _example("stablehlo.bitcast_convert", [t], r)
            for t, r in (
                ("f32", "i32"),
                ("ui32", "f32"),
                ("bf16", "i16"),
                ("f64", "ui64"),
                ("i8", "ui8"),
            )
        ],
        _supports_bitcast,
        few_bits=FewBits.UNSIGNED,
    ),
)
