"""Attributes of StableHLO/CHLO ops: MLIR <-> plain data.

Names are the op's own, except that dimension numbers are flattened into the node's attributes
under the names that the StableHLO specification gives them.  Enums are their upper-case strings;
attributes of another dialect ("mhlo.sharding") are kept as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, stablehlo

from hlo_mlc.graph.core import Attribute


class NotModelled(Exception):
    """An attribute has no plain form; the message says which and why."""


@dataclass(frozen=True, slots=True)
class _DimensionNumbers:
    """How one op spells its dimension numbers: `fields` in the order of `attribute_class.get`."""

    name: str
    attribute_class: type
    fields: tuple[str, ...]


_GATHER = _DimensionNumbers(
    "dimension_numbers",
    stablehlo.GatherDimensionNumbers,
    (
        "offset_dims",
        "collapsed_slice_dims",
        "operand_batching_dims",
        "start_indices_batching_dims",
        "start_index_map",
        "index_vector_dim",
    ),
)
_CONVOLUTION = _DimensionNumbers(
    "dimension_numbers",
    stablehlo.ConvDimensionNumbers,
    (
        "input_batch_dimension",
        "input_feature_dimension",
        "input_spatial_dimensions",
        "kernel_input_feature_dimension",
        "kernel_output_feature_dimension",
        "kernel_spatial_dimensions",
        "output_batch_dimension",
        "output_feature_dimension",
        "output_spatial_dimensions",
    ),
)
_DOT_FIELDS = (
    "lhs_batching_dimensions",
    "rhs_batching_dimensions",
    "lhs_contracting_dimensions",
    "rhs_contracting_dimensions",
)
_DIMENSION_NUMBERS: Mapping[str, _DimensionNumbers] = {
    "stablehlo.gather": _GATHER,
    "stablehlo.dynamic_gather": _GATHER,
    "stablehlo.scatter": _DimensionNumbers(
        "scatter_dimension_numbers",
        stablehlo.ScatterDimensionNumbers,
        (
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scatter_dims_to_operand_dims",
            "index_vector_dim",
        ),
    ),
    "stablehlo.convolution": _CONVOLUTION,
    "stablehlo.dynamic_conv": _CONVOLUTION,
    "stablehlo.dot_general": _DimensionNumbers(
        "dot_dimension_numbers", stablehlo.DotDimensionNumbers, _DOT_FIELDS
    ),
    "chlo.ragged_dot": _DimensionNumbers(
        "ragged_dot_dimension_numbers",
        chlo.RaggedDotDimensionNumbers,
        (*_DOT_FIELDS, "lhs_ragged_dimensions", "rhs_group_dimensions"),
    ),
}
# jaxlib's getter for this one field is named unlike the specification.
_GETTERS = {"scatter_dims_to_operand_dims": "scattered_dims_to_operand_dims"}

_DOT_ALGORITHM_FIELDS = (
    "lhs_precision_type",
    "rhs_precision_type",
    "accumulation_type",
    "lhs_component_count",
    "rhs_component_count",
    "num_primitive_operations",
    "allow_imprecise_accumulation",
)

_ENUM = re.compile(r"#(?:stablehlo|chlo)<\w+ (\w+)>")
# Dense integer attributes are paddings, layouts and replica groups: all small.
_MAX_DENSE_ELEMENTS = 65536


def read_attributes(
    operation: ir.Operation, cache: dict[ir.Attribute, Attribute]
) -> dict[str, Attribute]:
    """The attributes of `operation` as plain data, `value` of a constant excepted.

    `cache` holds what was read before: MLIR attributes are unique in their context.
    Raises: NotModelled.
    """
    attributes = operation.attributes
    if not len(attributes):
        return {}
    op = operation.name
    if op == "stablehlo.constant":
        return {n: str(attributes[n]) for n in attributes if n != "value"}
    dimension_numbers = _DIMENSION_NUMBERS.get(op)
    plain: dict[str, Attribute] = {}
    for name in attributes:
        if dimension_numbers is not None and name == dimension_numbers.name:
            typed = dimension_numbers.attribute_class(attributes[name])
            for field in dimension_numbers.fields:
                value = getattr(typed, _GETTERS.get(field, field))
                plain[field] = value if isinstance(value, int) else tuple(value)
            continue
        attribute = attributes[name]
        if "." in name:
            plain[name] = str(attribute)
            continue
        try:
            plain[name] = cache[attribute]
        except KeyError:
            try:
                plain[name] = cache[attribute] = _read(attribute)
            except NotModelled as error:
                raise NotModelled(f"attribute {name} = {error} is not modelled") from None
    return plain


def _read(attribute: ir.Attribute) -> Attribute:
    reader = _READERS.get(type(attribute))
    if reader is not None:
        return reader(attribute)
    text = str(attribute)
    if enum := _ENUM.fullmatch(text):
        return enum[1]
    if stablehlo.DotAlgorithm.isinstance(attribute):
        algorithm = stablehlo.DotAlgorithm(attribute)
        fields = (getattr(algorithm, field) for field in _DOT_ALGORITHM_FIELDS)
        return tuple(str(f) if isinstance(f, ir.Type) else f for f in fields)
    if stablehlo.ChannelHandle.isinstance(attribute):
        channel = stablehlo.ChannelHandle(attribute)
        return channel.handle, channel.channel_type
    if stablehlo.OutputOperandAlias.isinstance(attribute):
        alias = stablehlo.OutputOperandAlias(attribute)
        return (
            tuple(alias.output_tuple_indices),
            alias.operand_index,
            tuple(alias.operand_tuple_indices),
        )
    raise NotModelled(text[:100])


def _read_dense_integers(attribute: ir.DenseIntElementsAttr) -> Attribute:
    integers = np.asarray(attribute)
    if integers.size > _MAX_DENSE_ELEMENTS:
        raise NotModelled(f"dense integers of shape {integers.shape}")
    return _tuples(integers.tolist())


def _tuples(nested: object) -> Attribute:
    return tuple(map(_tuples, nested)) if isinstance(nested, list) else nested


_READERS: Mapping[type, Callable[[ir.Attribute], Attribute]] = {
    ir.IntegerAttr: lambda a: a.value,
    ir.BoolAttr: lambda a: a.value,
    ir.FloatAttr: lambda a: a.value,
    ir.StringAttr: lambda a: a.value,
    ir.FlatSymbolRefAttr: str,
    ir.TypeAttr: str,
    ir.UnitAttr: lambda a: True,
    ir.DenseI64ArrayAttr: tuple,
    ir.DenseI32ArrayAttr: tuple,
    ir.DenseBoolArrayAttr: tuple,
    ir.DenseIntElementsAttr: _read_dense_integers,
    ir.ArrayAttr: lambda a: tuple(map(_read, a)),
    ir.DictAttr: lambda a: tuple((named.name, _read(named.attr)) for named in a),
}


def write_attributes(op: str, plain: Mapping[str, Attribute]) -> dict[str, ir.Attribute]:
    """Attributes of a StableHLO/CHLO op in the current context: what `read_attributes` undoes.

    Raises: NotModelled for an attribute that only a cloned operation can carry.
    """
    attributes: dict[str, ir.Attribute] = {}
    rest = dict(plain)
    if dimension_numbers := _DIMENSION_NUMBERS.get(op):
        fields = [rest.pop(field) for field in dimension_numbers.fields]
        attributes[dimension_numbers.name] = dimension_numbers.attribute_class.get(*fields)
    for name, value in rest.items():
        attributes[name] = _write(op, name, value)
    return attributes


def _write(op: str, name: str, value: Attribute) -> ir.Attribute:
    if "." in name:
        return ir.Attribute.parse(value)
    if writer := _WRITERS.get(name):
        return writer(op, value)
    match value:
        case bool():
            return ir.BoolAttr.get(value)
        case int():
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
        case str():
            return ir.StringAttr.get(value)
        case tuple() if all(isinstance(v, int) for v in value):
            return ir.DenseI64ArrayAttr.get(value)
    raise NotModelled(f"{op} cannot be written anew with attribute {name} = {value!r}")


def _enum(kind: str) -> Callable[[str, str], ir.Attribute]:
    return lambda op, value: ir.Attribute.parse(f"#{op.partition('.')[0]}<{kind} {value}>")


def _write_precisions(op: str, values: tuple[str, ...]) -> ir.Attribute:
    return ir.ArrayAttr.get([_enum("precision")(op, value) for value in values])


def _write_rows(columns: int) -> Callable[[str, Attribute], ir.Attribute]:
    """Dense [n, columns] integers; `columns` -1 stands for those of the first row."""

    def write(op: str, rows: tuple[tuple[int, ...], ...]) -> ir.Attribute:
        matrix = np.array(rows, np.int64).reshape(len(rows), columns)
        i64 = ir.IntegerType.get_signless(64)
        return ir.DenseElementsAttr.get(matrix, type=i64, shape=matrix.shape)

    return write


def _write_channel(op: str, channel: tuple[int, int]) -> ir.Attribute:
    return stablehlo.ChannelHandle.get(*channel)


def _write_algorithm(op: str, fields: tuple[Attribute, ...]) -> ir.Attribute:
    types = [ir.Type.parse(name) for name in fields[:3]]
    return stablehlo.DotAlgorithm.get(*types, *fields[3:])


def _write_unit(op: str, value: bool) -> ir.Attribute:
    return ir.UnitAttr.get()


def _write_booleans(op: str, values: tuple[bool, ...]) -> ir.Attribute:
    return ir.DenseBoolArrayAttr.get(values)


def _write_i32(op: str, value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)


def _write_f32(op: str, value: float) -> ir.Attribute:
    return ir.FloatAttr.get_f32(value)


# The attributes whose MLIR form does not follow from the Python type of their value.
_WRITERS: Mapping[str, Callable[[str, Attribute], ir.Attribute]] = {
    "comparison_direction": _enum("comparison_direction"),
    "compare_type": _enum("comparison_type"),
    "fft_type": _enum("fft_type"),
    "rng_algorithm": _enum("rng_algorithm"),
    "rng_distribution": _enum("rng_distribution"),
    "transpose_a": _enum("transpose"),
    "precision_config": _write_precisions,
    "algorithm": _write_algorithm,
    "padding": _write_rows(2),
    "source_target_pairs": _write_rows(2),
    "replica_groups": _write_rows(-1),
    "channel_handle": _write_channel,
    "use_global_device_ids": _write_unit,
    "window_reversal": _write_booleans,
    "exponent_bits": _write_i32,
    "mantissa_bits": _write_i32,
    "epsilon": _write_f32,
}
