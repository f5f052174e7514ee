"""Tensor types and constants: MLIR <-> `TensorType` and NumPy."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable

import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.expr import dtypes
from hlo_mlc.expr.dtypes import DType, Kind, TensorType

_ELEMENTS = {t.name: t for t in (*dtypes.ALL, *dtypes.PACKED)}

_DENSE = "value = dense<", "> : tensor<"
_RESOURCE = re.compile(r'value = dense_resource<(?P<name>"[^"]*"|[^>]+)>')
_NUMBER = re.compile(r"0x[0-9A-Fa-f]+|[-+0-9][-+.0-9eE]*")
# A resource's blob begins with its alignment as a 32-bit integer.
_RESOURCE_HEADER_BYTES = 4


def read_type(mlir_type: ir.Type, dynamic_name: str) -> TensorType | None:
    """The tensor type, or None if it is not modelled (token, tuple, quantized, f4, bounded, …).

    MLIR does not name dynamic dimensions: dimension i becomes `{dynamic_name}{i}`.
    """
    if not isinstance(mlir_type, ir.RankedTensorType) or mlir_type.encoding is not None:
        return None
    element = _ELEMENTS.get(str(mlir_type.element_type))
    if element is None:
        return None
    shape = tuple(
        f"{dynamic_name}{i}" if mlir_type.is_dynamic_dim(i) else size
        for i, size in enumerate(mlir_type.shape)
    )
    return TensorType(shape, element)


def write_type(tensor: TensorType) -> ir.RankedTensorType:
    """The MLIR type, in the current context; named dimensions become dynamic ones."""
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [d if isinstance(d, int) else dynamic for d in tensor.shape]
    return ir.RankedTensorType.get(shape, ir.Type.parse(tensor.dtype.name))


def read_literal(constant: ir.Operation, tensor: TensorType) -> np.ndarray:
    """The payload of a stablehlo.constant; a splat is a view of one element, strides 0.

    Raises: ValueError if the payload is in none of the forms that MLIR prints.
    """
    dtype = tensor.dtype
    # MLIR lends no buffer for bf16, floats of a byte and integers of less, and no attribute at all
    # for complex elements: see _from_text.
    if (
        dtype is dtypes.BF16
        or dtype in dtypes.FLOATS_OF_A_BYTE
        or dtype.is_packed
        or dtype.kind is Kind.COMPLEX
    ):
        return _from_text(constant, tensor)
    attribute = constant.attributes["value"]
    if not isinstance(attribute, (ir.DenseIntElementsAttr, ir.DenseFPElementsAttr)):
        return _from_text(constant, tensor)
    if tensor.size == 0:
        return np.zeros(tensor.shape, dtype.numpy)
    literal = np.asarray(attribute)
    if attribute.is_splat:
        return _splat(literal[(0,) * literal.ndim], tensor.shape)
    return literal


def is_resource(constant: ir.Operation) -> bool:
    """Whether the values of a constant stand below its module."""
    return (
        _RESOURCE.search(constant.get_asm(print_generic_op_form=True, large_elements_limit=1))
        is not None
    )


def literal_identity(constant: ir.Operation) -> Hashable:
    """What two constants of one context have in common only if they are equal."""
    try:
        return constant.attributes["value"]
    except TypeError:  # Python has no class for attributes of complex elements
        return constant


def listed_elements(constant: ir.Operation) -> int:
    """How many elements a constant lists; none where one stands for all."""
    try:
        attribute = constant.attributes["value"]
    except TypeError:  # complex elements again, of which the text says whether it is one
        text = constant.get_asm(print_generic_op_form=True, large_elements_limit=1)
        return 0 if "dense<(" in text else math.prod(ir.ShapedType(constant.results[0].type).shape)
    return (
        len(attribute)
        if isinstance(attribute, ir.DenseElementsAttr) and not attribute.is_splat
        else 0
    )


def write_literal(literal: np.ndarray, dtype: DType) -> ir.DenseElementsAttr:
    """A dense attribute in the current context; a view of one element becomes a splat."""
    data = literal
    if literal.size and not any(literal.strides):
        data = literal[(slice(0, 1),) * literal.ndim]
    return ir.DenseElementsAttr.get(
        np.ascontiguousarray(data), type=ir.Type.parse(dtype.name), shape=literal.shape
    )


def _splat(element: np.generic, shape: tuple[int, ...]) -> np.ndarray:
    """What np.broadcast_to gives, at a tenth of its time: programs have many small constants."""
    return np.ndarray(shape, element.dtype, element.tobytes(), strides=(0,) * len(shape))


def _from_text(constant: ir.Operation, tensor: TensorType) -> np.ndarray:
    text = constant.get_asm(print_generic_op_form=True)
    numpy_type = tensor.dtype.numpy
    if resource := _RESOURCE.search(text):
        return np.frombuffer(_resource_bytes(constant, resource["name"]), numpy_type).reshape(
            tensor.shape
        )
    before, _, rest = text.partition(_DENSE[0])
    dense, found, _ = rest.partition(_DENSE[1])
    if not found:
        raise ValueError(f"a constant whose payload is not understood: {before[:80]}")
    if dense.startswith('"0x'):
        flat = np.frombuffer(bytes.fromhex(dense[3:-1]), numpy_type)
    else:
        flat = _from_numbers(_NUMBER.findall(dense), numpy_type)
    if flat.size == 1:
        return _splat(flat[0], tensor.shape)
    return flat.reshape(tensor.shape)


def _from_numbers(numbers: list[str], numpy_type: np.dtype) -> np.ndarray:
    """Decimal numbers, and bit patterns in hexadecimal; complex elements are pairs."""
    is_complex = numpy_type.kind == "c"
    part = np.empty(0, numpy_type).real.dtype if is_complex else numpy_type
    bits = np.dtype(f"u{part.itemsize}")
    values = np.empty(len(numbers), part)
    for i, number in enumerate(numbers):
        if number.startswith("0x"):
            values.view(bits)[i] = int(number, 16)
        else:
            values[i] = float(number)
    return values.view(numpy_type) if is_complex else values


def _resource_bytes(constant: ir.Operation, name: str) -> bytes:
    """The blob of a resource, which MLIR prints only below a module that uses it."""
    with constant.context, ir.Location.unknown():
        holder = ir.Module.create()
        constant.clone(ir.InsertionPoint(holder.body))
        text = str(holder)
    blob = re.search(rf'(?<!\S){re.escape(name)}: "0x([0-9A-Fa-f]*)"', text)
    if blob is None:
        raise ValueError(f"resource {name} has no payload")
    return bytes.fromhex(blob[1])[_RESOURCE_HEADER_BYTES:]
