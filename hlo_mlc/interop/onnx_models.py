"""`from_onnx`: an ONNX model as a function of JAX, its operators by jaxonnxruntime."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from hlo_mlc.interop.function import resolve_options
from hlo_mlc.interop.jitted import MlcFunction, jitted
from hlo_mlc.interop.onnx_operators import OPERATORS, Prepared
from hlo_mlc.support.errors import FrontendError, UnsupportedOpError, UsageError

_SAME = ("", "ai.onnx")  # names of the standard set of operators


def from_onnx(model: str | os.PathLike[str] | bytes | Any, *, choose: str | None = None,
              target: str | None = None) -> MlcFunction[..., tuple[jax.Array, ...]]:
    """An ONNX model, a file or its bytes or an `onnx.ModelProto`, as what `mlc_jit` returns: a
    function of the model's inputs in their order, which returns a tuple of its outputs.

    The weights are constants of what is compiled. Inputs may have any shapes that the model allows;
    it is compiled for each anew. Where all are fixed, the attribute `example_args` has their types,
    which the command line takes for arguments. `choose` and `target` are as for `mlc_jit`.

    Raises: UsageError where onnx or jaxonnxruntime is missing or there is no such file;
    FrontendError for what is no valid model; UnsupportedOpError, which names the node and its
    operator, for one that cannot be imported.
    """
    options = resolve_options(choose, target)
    onnx = _module("onnx")
    proto = _read(onnx, model)
    graph = proto.graph
    nodes = dict(_nodes(graph))
    _check_operators(proto, nodes)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [given for given in graph.input if given.name not in weights]
    runs: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def call(*arrays: Any) -> tuple[jax.Array, ...]:
        if len(arrays) != len(inputs):
            raise UsageError(f"{call.__name__} takes {len(inputs)} arguments "
                             f"({', '.join(map(_described, inputs))}), got {len(arrays)}")
        kind = tuple((tuple(array.shape), array.dtype) for array in arrays)
        names = [given.name for given in inputs]
        with _naming_the_node(graph, nodes):
            if kind not in runs:
                runs[kind] = _imported(proto, names, kind)
            function, parameters = runs[kind]
            return tuple(function(parameters, dict(zip(names, arrays, strict=True))))

    call.__name__ = call.__qualname__ = "".join(
        letter if letter.isalnum() else "_" for letter in graph.name) or "model"
    call.__doc__ = (f"{graph.name}: ({', '.join(map(_described, inputs))}) -> "
                    f"({', '.join(map(_described, graph.output))}).")
    found = jitted(call, options, {})
    types = [_type(onnx, given) for given in inputs]
    if None not in types:
        found.example_args = tuple(types)
    return found


def _read(onnx: ModuleType, model: Any) -> Any:
    """The checked model with what is known of its shapes.

    Raises: UsageError, FrontendError.
    """
    try:
        if isinstance(model, str | os.PathLike):
            if not Path(model).is_file():
                raise UsageError(f"There is no file {os.fspath(model)!r}")
            proto = onnx.load(os.fspath(model))
        else:
            proto = onnx.load_from_string(model) if isinstance(model, bytes) else model
        onnx.checker.check_model(proto)
    except UsageError:
        raise
    except Exception as error:  # protobuf's own, and the checker's
        name = os.fspath(model) if isinstance(model, str | os.PathLike) else "what was given"
        raise FrontendError(f"{name} is no valid ONNX model: {error}") from error
    return proto


def _nodes(graph: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """What people call the nodes of a graph and of those in it, by their outputs, of which each is
    that of one node: jaxonnxruntime overwrites their names."""
    for number, node in enumerate(graph.node):
        outputs = tuple(node.output)
        yield outputs, repr(node.name) if node.name else f"number {number} ({', '.join(outputs)})"
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


def _check_operators(proto: Any, nodes: Mapping[tuple[str, ...], str]) -> None:
    """Raises: UnsupportedOpError for the first node whose operator nobody imports."""
    _add_operators()
    handlers = _module("jaxonnxruntime.call_onnx")._get_all_handlers(proto.opset_import)
    for node in proto.graph.node:
        domains = _SAME if node.domain in _SAME else (node.domain,)
        if not any(node.op_type in handlers.get(domain, {}) for domain in domains):
            raise UnsupportedOpError(
                _operator(node),
                f"jaxonnxruntime does not import this operator, of node {nodes[(*node.output,)]}")


@contextlib.contextmanager
def _naming_the_node(graph: Any, nodes: Mapping[tuple[str, ...], str]) -> Iterator[None]:
    """Says of what jaxonnxruntime raises at which node it was, the innermost that its frames hold.

    Raises: UnsupportedOpError.
    """
    try:
        yield
    except Exception as error:  # from whichever operator it is
        frames = (frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__))
        held = [names["node_proto"] for names in frames if "node_proto" in names]
        what = _operator(held[-1]) if held else graph.name
        where = f" at node {nodes[(*held[-1].output,)]}" if held else ""
        raise UnsupportedOpError(
            what, f"jaxonnxruntime cannot import it{where}: {type(error).__name__}: {error}"
        ) from error


def _operator(node: Any) -> str:
    return f"{node.domain}{'.' if node.domain else ''}{node.op_type}"


@functools.cache
def _add_operators() -> tuple[type, ...]:
    """Gives jaxonnxruntime the operators of ours that it has not, once."""
    base = _module("jaxonnxruntime.core.handler").Handler
    _module("jaxonnxruntime.onnx_ops")
    known = {handler.OP_TYPE for handler in base.__subclasses__() if handler.DOMAIN == ""}

    def handle(prepared: Prepared) -> classmethod[Any, Any, Any]:
        return classmethod(lambda cls, node, inputs, **_: prepared(node.attrs, inputs))

    return tuple(type(name, (base,), {"OP_TYPE": name, "DOMAIN": "", "handle": handle(prepared)})
                 for name, prepared in OPERATORS.items() if name not in known)


def _imported(proto: Any, names: Sequence[str], kind: tuple[Any, ...]) -> tuple[Any, Any]:
    """The function of jaxonnxruntime for inputs of these shapes, and its weights."""
    run = _module("jaxonnxruntime.call_onnx")
    zeros = {name: np.zeros(shape, dtype) for name, (shape, dtype) in
             zip(names, kind, strict=True)}
    with jax.ensure_compile_time_eval():
        return run.call_onnx_model(proto, zeros)


def _type(onnx: ModuleType, given: Any) -> jax.ShapeDtypeStruct | None:
    """The type of an input, if its shape is fixed."""
    tensor = given.type.tensor_type
    sizes = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    if None in sizes:
        return None
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return jax.ShapeDtypeStruct(sizes, jax.dtypes.canonicalize_dtype(dtype))


def _described(given: Any) -> str:
    tensor = given.type.tensor_type
    sizes = ", ".join(d.dim_param or str(d.dim_value) for d in tensor.shape.dim)
    return f"{given.name}[{sizes}]"


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"from_onnx needs {name.partition('.')[0]}, which cannot be imported "
                         f"({error}): pip install 'hlo-mlc[onnx]'") from error
