"""Running the graphs of a model, node by node, while JAX traces."""

from __future__ import annotations

import contextlib
import importlib
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_mlc.interop.onnx.node import Node, is_known
from hlo_mlc.interop.onnx.operators import NEWEST, OPERATORS, REFUSED
from hlo_mlc.support.errors import UnsupportedOpError, UsageError

_STANDARD = ("", "ai.onnx")  # names of the standard set of operators

# Inputs that bound integers: where JAX has 32 bits of them, any bound beyond is the last of these.
_BOUNDS = {
    "Clip": slice(1, None),
    "Loop": slice(0, 1),
    "Max": slice(None),
    "Min": slice(None),
    "Slice": slice(1, None),
}


def module() -> ModuleType:
    try:
        return importlib.import_module("onnx")
    except ImportError as error:
        raise UsageError(
            f"from_onnx needs onnx, which cannot be imported ({error}): pip install 'hlo-mlc[onnx]'"
        ) from error


@dataclass(frozen=True, slots=True)
class Scope:
    """Where nodes stand: in a graph of the model or in the body of a function."""

    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str], Any]  # the model's own, by domain and name
    attributes: Mapping[str, Any]  # of the function, which its nodes refer to
    is_own: bool = True  # the model's nodes, and not those by which the specification gives one

    @classmethod
    def of(cls, model: Any) -> Scope:
        functions = {(_domain(function), function.name): function for function in model.functions}
        return cls({}, functions, {}).inside(model)

    def inside(
        self, function: Any, attributes: Mapping[str, Any] | None = None, is_own: bool = True
    ) -> Scope:
        """That of a function which is called here."""
        opsets = {_domain(opset): opset.version for opset in function.opset_import}
        return Scope(
            {**self.opsets, **opsets}, self.functions, attributes or {}, self.is_own and is_own
        )

    def function_of(self, node: Any) -> Any:
        return self.functions.get((_domain(node), node.op_type))

    def schema_of(self, node: Any) -> Any:
        """The specification of its operator, None if there is none."""
        defs = module().defs
        try:
            return defs.get_schema(node.op_type, self.opsets[_domain(node)], _domain(node))
        except (KeyError, defs.SchemaError):
            return None


def check(nodes: Sequence[Any], scope: Scope) -> None:
    """Raises: UnsupportedOpError for the first node whose operator nobody imports."""
    for number, node in enumerate(nodes):
        function, schema = scope.function_of(node), scope.schema_of(node)
        if function is not None:
            check(function.node, scope.inside(function))
        elif why := _why_not(node, schema):
            raise UnsupportedOpError(
                _operator(node),
                f"{_described(number, node)} cannot be imported: {why}; end the "
                "model before it (onnx.utils.extract_model) and compute the rest by other means",
            )
        for attribute in node.attribute:
            check(attribute.g.node, scope)


def _why_not(node: Any, schema: Any) -> str | None:
    """Why nobody imports an operator, if so."""
    if schema is None:
        return "neither the model nor ONNX says what it does"
    if _is_standard(node) and schema.since_version > NEWEST:
        return f"it is one of set {schema.since_version} of operators, those up to {NEWEST} are"
    if _is_standard(node) and node.op_type in REFUSED:
        return REFUSED[node.op_type]
    return None if _is_here(node) or _has_body(schema) else "it is none of those that hlo_mlc has"


def run(graph: Any, scope: Scope, outer: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a graph for values of its inputs, or of those that have no weights of their
    own; `outer` are the values of what is around it.

    Raises: UnsupportedOpError, which names the node.
    """
    weights = {tensor.name: module().numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights |= {sparse.values.name: _dense(sparse) for sparse in graph.sparse_initializer}
    names = [given.name for given in graph.input]
    if len(names) != len(inputs):
        names = [name for name in names if name not in weights]
    values = ChainMap(dict(weights), outer)  # type: ignore[arg-type]
    values.update(zip(names, inputs, strict=True))
    _run_nodes(graph.node, scope, values)
    return [values[given.name] for given in graph.output]


def _run_nodes(nodes: Sequence[Any], scope: Scope, values: Any) -> None:
    for number, node in enumerate(nodes):
        with _naming(number, node) if scope.is_own else contextlib.nullcontext():
            found = _run_node(node, scope, values)
            for name, value in zip(node.output, found, strict=False):
                values[name] = value
            missing = [name for name in node.output[len(found) :] if name]
            if missing:
                raise NotImplementedError(f"its output {', '.join(missing)}")


def _run_node(node: Any, scope: Scope, values: Mapping[str, Any]) -> Sequence[Any]:
    inputs = [values[name] if name else None for name in node.input]
    given = {a.name: value for a in node.attribute if (value := _value(a, scope)) is not None}
    function, schema = scope.function_of(node), scope.schema_of(node)
    if function is not None:
        defaults = {a.name: _value(a, scope) for a in function.attribute_proto}
        return _call(function, scope.inside(function, defaults | given), inputs)
    attributes = {
        name: _value(a.default_value, scope)
        for name, a in schema.attributes.items()
        if a.default_value.type
    } | given
    if not _is_here(node):
        body = _body(node, schema, given, inputs)
        return _call(body, scope.inside(body, attributes, is_own=False), inputs)

    def run_graph(graph: Any, *arguments: Any) -> list[Any]:
        return run(graph, scope, values, arguments)

    constant = is_known(*inputs)
    seen = Node(
        schema.since_version,
        attributes,
        sum(map(bool, node.output)),
        np if constant else jnp,
        run_graph,
    )
    if constant and not any(a.g.node for a in node.attribute):
        with jax.ensure_compile_time_eval(), jax.enable_x64(True), np.errstate(all="ignore"):
            found = OPERATORS[node.op_type](seen, *inputs)
            found = tuple(
                jax.tree.map(np.asarray, part)
                for part in (found if isinstance(found, tuple) else (found,))
            )
    else:
        if bounds := _BOUNDS.get(node.op_type):
            inputs[bounds] = [_bounded(value) for value in inputs[bounds]]
        _check_range(inputs)
        found = OPERATORS[node.op_type](seen, *inputs)
    return found if isinstance(found, tuple) else (found,)


def _call(function: Any, scope: Scope, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a function; what it leaves out of its inputs and outputs is None."""
    values = dict.fromkeys(function.input) | dict(zip(function.input, inputs, strict=False))
    _run_nodes(function.node, scope, values)
    return [values.get(name) for name in function.output]


def _bounded(value: Any) -> Any:
    """A constant, cut to what JAX has of its type."""
    if not isinstance(value, np.ndarray) or value.dtype not in (np.int64, np.uint64):
        return value
    range_ = np.iinfo(jax.dtypes.canonicalize_dtype(value.dtype))
    return value.clip(range_.min, range_.max)


def _check_range(values: Any) -> None:
    """Raises: NotImplementedError for integers that JAX would cut off."""
    for value in jax.tree.leaves(values):
        if (cut := _bounded(value)) is not value and (cut != value).any():
            raise NotImplementedError(
                "a constant of more than 32 bits: JAX has such only with jax_enable_x64"
            )


def constants(values: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs as arrays of JAX."""
    _check_range(values)
    return tuple(jax.tree.map(jnp.asarray, value) for value in values)


def _body(node: Any, schema: Any, given: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """The function that the specification gives an operator by."""
    onnx = module()
    if schema.has_function:
        return schema.function_body
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.attribute[:]
    plain.attribute.extend(
        onnx.helper.make_attribute(a.name, given[a.name]) if a.ref_attr_name else a
        for a in node.attribute
        if a.name in given
    )
    version = schema.context_dependent_function_opset_versions[-1]
    body = schema.get_context_dependent_function_with_opset_version(
        version, plain.SerializeToString(), [_type(x).SerializeToString() for x in inputs]
    )
    return onnx.FunctionProto.FromString(body)


def _type(x: Any) -> Any:
    helper = module().helper
    if x is None:
        return module().TypeProto()
    if isinstance(x, list):
        return helper.make_sequence_type_proto(_type(x[0]))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(x.dtype))
    return helper.make_tensor_type_proto(kind, x.shape)


def _value(attribute: Any, scope: Scope) -> Any:
    """Of an attribute: text, numbers, arrays, types, graphs; None where it refers to one that the
    function is not given."""
    if attribute.ref_attr_name:
        return scope.attributes.get(attribute.ref_attr_name)
    onnx = module()
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    if isinstance(value, onnx.SparseTensorProto):
        return _dense(value)
    if attribute.name in ("to", "dtype", "output_dtype", "precision", "output_datatype"):
        return onnx.helper.tensor_dtype_to_np_dtype(value) if value else None
    if attribute.type == onnx.AttributeProto.STRINGS:
        return tuple(text.decode() for text in value)
    return tuple(value) if isinstance(value, list) or hasattr(value, "append") else value


def _dense(sparse: Any) -> np.ndarray:
    to_array = module().numpy_helper.to_array
    values, indices = to_array(sparse.values), to_array(sparse.indices)
    out = np.zeros(tuple(sparse.dims), values.dtype)
    index = np.unravel_index(indices, out.shape) if indices.ndim == 1 else tuple(indices.T)
    out[index] = values
    return out


def _is_standard(node: Any) -> bool:
    return _domain(node) == ""


def _is_here(node: Any) -> bool:
    return _is_standard(node) and node.op_type in OPERATORS


def _has_body(schema: Any) -> bool:
    return bool(schema.has_function or schema.has_context_dependent_function)


def _domain(named: Any) -> str:
    return "" if named.domain in _STANDARD else str(named.domain)


def _operator(node: Any) -> str:
    return f"{node.domain}{'.' if node.domain else ''}{node.op_type}"


def _described(number: int, node: Any) -> str:
    name = repr(node.name) if node.name else f"number {number} ({', '.join(node.output)})"
    return f"node {name}"


@contextlib.contextmanager
def _naming(number: int, node: Any) -> Iterator[None]:
    """Says of what an operator raises at which node it was, the innermost of the model's own.

    Raises: UnsupportedOpError.
    """
    try:
        yield
    except UnsupportedOpError:
        raise
    except Exception as error:  # from whichever operator it is
        why = "" if isinstance(error, NotImplementedError) else f"{type(error).__name__}: "
        raise UnsupportedOpError(
            _operator(node), f"{_described(number, node)} cannot be imported: {why}{error}"
        ) from error
