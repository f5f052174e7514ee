"""What other exporters write, as JAX writes the same.

PyTorch's and TensorFlow's compute sizes in MLIR's own dialects, leave it to operations of CHLO
which operand is to be broadcast, and have operations that StableHLO has given up; JAX's own for
other machines has products of groups of rows:

    %n = tensor.dim %x, %c0 : tensor<?x4xf32>         ->  get_dimension_size, convert to i64
    %s = tensor.from_elements %n : tensor<1xindex>    ->  reshape, concatenate
    %y = chlo.broadcast_add %x, %w                    ->  broadcast_in_dim, add
    %z = stablehlo.dot %y, %v                         ->  dot_general
    %u = stablehlo.einsum %y, %v, config = "ab,cb->a" ->  reduce, dot_general
    %r = chlo.ragged_dot %x, %w, %sizes               ->  dot_general, select, reduce

Requires: a module that MLIR has verified.  Ensures: the same functions; what is known here of other
dialects is gone, indices are integers of 64 bits.
"""

from __future__ import annotations

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.frontend import einsum, implied, ragged, run_time_places, shape_dialects
from hlo_mlc.frontend.walking import operations
from hlo_mlc.frontend.writing import Writer, integers, with_elements
from hlo_mlc.support.errors import UnsupportedOpError

stablehlo.register_stablehlo_passes()

# What a pass of StableHLO's own writes anew.
_OLD = frozenset(
    f"stablehlo.{name}" for name in ("broadcast", "create_token", "cross-replica-sum", "dot")
)
_RENEW = "builtin.module(func.func(stablehlo-legalize-deprecated-ops{fail-on-unused=false}))"
_REWRITES = {
    name: rewrite
    for family in (shape_dialects, implied, run_time_places, einsum, ragged)
    for name, rewrite in family.REWRITES.items()
}
_ASSUMING = "shape.assuming"
# What is rewritten where it is of indices, which others compute with.
_BESIDE_OTHERS = frozenset(("stablehlo.constant",))
# Attributes of functions that only TensorFlow reads.
_NOTES = ("tf.", "tf_saved_model.")


def write_as_jax_does(module: ir.Module) -> None:
    """Replaces what is said above; a module without any of it stays as it is.

    Raises: UnsupportedOpError for an operation on sizes that is not known; ir.MLIRError for what
    StableHLO's pass refuses.
    """
    names = {operation.name for operation in operations(module)}
    with module.context, ir.Location.unknown():
        if names & _OLD:
            passmanager.PassManager.parse(_RENEW).run(module.operation)
        if _ASSUMING in names or any(map(_rewrite_of, names - _BESIDE_OTHERS)):
            for operation in module.body.operations:
                _rewrite_regions(operation.operation)
            module.operation.verify()
    for operation in module.body.operations:
        _forget_notes(operation.operation)


def _rewrite_regions(operation: ir.Operation) -> None:
    for region in operation.regions:
        for block in region.blocks:
            witnesses: list[ir.Operation] = []
            for inner in list(block.operations):
                _rewrite_regions(inner.operation)
                _rewrite(inner.operation, witnesses)
            for witness in reversed(witnesses):
                witness.erase()


def _rewrite(operation: ir.Operation, witnesses: list[ir.Operation]) -> None:
    if operation.name in shape_dialects.WITNESSES:
        witnesses.append(operation)
    elif operation.name == _ASSUMING:
        _inline(operation)
    elif rewrite := _rewrite_of(operation.name):
        for operand in operation.operands:
            _require_tensor(operand)
        found = rewrite(Writer(operation), operation)
        if found is None:
            return
        values = [found] if isinstance(found, ir.Value) else found
        for result, value in zip(operation.results, values, strict=True):
            result.replace_all_uses_with(value)
        operation.erase()
    else:
        _without_indices(operation)


def _require_tensor(operand: ir.Value) -> None:
    """Numbers are tensors, where all that they come from is known."""
    if not isinstance(operand.type, ir.RankedTensorType):
        source = operand.owner
        name = "an argument" if isinstance(source, ir.Block) else source.name
        raise UnsupportedOpError(
            name,
            f"{operand.type} that it gives is not known here: "
            "arithmetic on sizes is taken from the dialects shape, tensor and "
            "arith as far as PyTorch and TensorFlow use it",
        )


def _rewrite_of(name: str) -> shape_dialects.Rewrite | None:
    """How an operation is written as JAX writes it; None for one that is, or is not known."""
    if name.startswith(implied.BROADCASTING):
        return implied.broadcasting(name)
    return _REWRITES.get(name)


def _inline(assuming: ir.Operation) -> None:
    """What is computed where shapes fit, in its place."""
    (block,) = assuming.regions[0].blocks
    *computing, end = block.operations
    for operation in computing:
        operation.operation.move_before(assuming)
    for result, value in zip(assuming.results, end.operands, strict=True):
        result.replace_all_uses_with(value)
    assuming.erase()


def _without_indices(operation: ir.Operation) -> None:
    for result in operation.results:
        if shape_dialects.has_indices(result.type):
            result.set_type(with_elements(result.type, integers()))


def _forget_notes(operation: ir.Operation) -> None:
    for name in [one if isinstance(one, str) else one.name for one in operation.attributes]:
        if name.startswith(_NOTES):
            del operation.attributes[name]
