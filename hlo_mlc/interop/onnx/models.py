"""`from_onnx`: an ONNX model as a function of JAX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import numpy as np

from hlo_mlc.interop.function import resolve_options
from hlo_mlc.interop.jitted import MlcFunction, jitted
from hlo_mlc.interop.onnx import graphs
from hlo_mlc.support.errors import FrontendError, UnsupportedOpError, UsageError
from hlo_mlc.support.wording import counted


def from_onnx(
    model: str | os.PathLike[str] | bytes | Any,
    *,
    choose: str | None = None,
    target: str | None = None,
) -> MlcFunction[..., tuple[jax.Array, ...]]:
    """An ONNX model, a file or its bytes or an `onnx.ModelProto`, as what `mlc_jit` returns: a
    function of the model's inputs in their order, which returns a tuple of its outputs.

    The weights are constants of what is compiled. Inputs may have any shapes that the model allows;
    it is compiled for each anew. Where all are fixed, the attribute `example_args` has their types,
    which the command line takes for arguments. `choose` and `target` are as for `mlc_jit`.

    Raises: UsageError where onnx is missing or too old or there is no such file, and, in a call,
    for arrays that are not of the model's types and sizes; FrontendError for what is no valid
    model; UnsupportedOpError, which names the node and its operator, for one that cannot be
    imported.
    """
    options = resolve_options(choose, target)
    onnx = graphs.module()
    proto = _read(onnx, model)
    graph = proto.graph
    scope = graphs.Scope.of(proto)
    if (asked := scope.opsets.get("", 0)) > (known := onnx.defs.onnx_opset_version()):
        raise UsageError(
            f"{graph.name} uses set {asked} of ONNX's operators, and onnx "
            f"{onnx.__version__} knows those up to {known}: pip install -U onnx"
        )
    graphs.check(graph.node, scope)
    weights = {tensor.name for tensor in graph.initializer} | {
        sparse.values.name for sparse in graph.sparse_initializer
    }
    inputs = [given for given in graph.input if given.name not in weights]
    types = [_type(onnx, given) for given in inputs]

    def call(*arrays: Any) -> tuple[jax.Array, ...]:
        if len(arrays) != len(inputs):
            raise UsageError(
                f"{call.__name__} takes {counted(len(inputs), 'argument')} "
                f"({', '.join(map(_described, inputs))}), got {len(arrays)}"
            )
        for given, kind, array in zip(inputs, types, arrays, strict=True):
            if kind is not None and not _fits(array, *kind):
                raise UsageError(
                    f"{_described(given)} of {call.__name__} is of type {kind[1]}, "
                    f"got {array.dtype}[{','.join(map(str, array.shape))}]"
                )
        return graphs.constants(graphs.run(graph, scope, {}, arrays))

    call.__name__ = call.__qualname__ = (
        "".join(letter if letter.isalnum() else "_" for letter in graph.name) or "model"
    )
    call.__doc__ = (
        f"{graph.name}: ({', '.join(map(_described, inputs))}) -> "
        f"({', '.join(map(_described, graph.output))})."
    )
    found: Any = jitted(call, options, {})
    if all(kind and kind[0] is not None and None not in kind[0] for kind in types):
        found.example_args = tuple(
            jax.ShapeDtypeStruct(kind[0], jax.dtypes.canonicalize_dtype(kind[1]))
            for kind in types
            if kind
        )
    return found


def _read(onnx: ModuleType, model: Any) -> Any:
    """The checked model.

    Raises: UsageError, FrontendError.
    """
    try:
        if isinstance(model, str | os.PathLike):
            if not os.path.isfile(model):  # not so a name that is too long for one
                raise UsageError(f"There is no file {os.fspath(model)!r}")
            onnx.checker.check_model(os.fspath(model))  # of any size, other than what is loaded
            return onnx.load(os.fspath(model))
        proto = onnx.load_from_string(model) if isinstance(model, bytes) else model
        onnx.checker.check_model(proto)
    except UsageError:
        raise
    except Exception as error:  # protobuf's own, and the checker's
        name = os.fspath(model) if isinstance(model, str | os.PathLike) else "what was given"
        raise FrontendError(f"{name} is no valid ONNX model: {error}") from error
    return proto


def _type(onnx: ModuleType, given: Any) -> tuple[list[int | None] | None, np.dtype[Any]] | None:
    """The sizes of an input, those that are fixed, and its type, if it is an array.

    Raises: UnsupportedOpError.
    """
    if not given.type.HasField("tensor_type"):
        return None
    tensor = given.type.tensor_type
    sizes = (
        [
            d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None
            for d in tensor.shape.dim
        ]
        if tensor.HasField("shape")
        else None
    )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind not in "biufcV":
        raise UnsupportedOpError(given.name, "JAX has no strings, which this input is of")
    return sizes, dtype


def _fits(array: Any, sizes: Sequence[int | None] | None, dtype: np.dtype[Any]) -> bool:
    return array.dtype == jax.dtypes.canonicalize_dtype(dtype) and (
        sizes is None
        or (
            len(sizes) == array.ndim
            and all(
                size is None or size == given
                for size, given in zip(sizes, array.shape, strict=True)
            )
        )
    )


def _described(given: Any) -> str:
    tensor = given.type.tensor_type
    sizes = (
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?")
        for d in tensor.shape.dim
    )
    return f"{given.name}[{','.join(sizes) if tensor.HasField('shape') else '...'}]"
