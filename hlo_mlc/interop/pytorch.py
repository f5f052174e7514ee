"""`from_torch`: a PyTorch module by way of torch.export and torch-mlir."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

from hlo_mlc.interop.arguments import FreeSize
from hlo_mlc.interop.extraction import MAIN
from hlo_mlc.interop.function import resolve_options
from hlo_mlc.interop.module import StablehloFunction, with_free_sizes
from hlo_mlc.support.errors import UnsupportedOpError, UsageError

_OPERATOR = re.compile(r"""torch\.((?:aten|prims)\.\w+)""")
_PLACE = re.compile(r'"([^"]+)":(\d+)')


def from_torch(
    module: Any,
    *example_args: Any,
    dynamic_shapes: Any = None,
    choose: str | None = None,
    target: str | None = None,
) -> StablehloFunction:
    """A PyTorch module, compiled for CPUs and the shapes of `example_args`, tensors such as the
    module is called with.

    `dynamic_shapes` are those of torch.export: a size that is a `torch.export.Dim` there is free.
    What is compiled is compiled for the sizes of a call then, as a program of symbolic sizes is by
    `compile_stablehlo`: from the second number of rows on by kernels that serve every other.

    It takes PyTorch, NumPy or JAX arrays, and returns a tuple of JAX arrays, which
    `torch.from_dlpack` takes; neither way is anything copied. The parameters are constants of what
    is compiled, those that the module has now; put it into `eval()` mode before. `choose` and
    `target` are as for `mlc_jit`.

    Raises: UsageError where torch or torch-mlir is missing, or torch.export cannot export the
    module; UnsupportedOpError, which names the operator, for what has no StableHLO.
    """
    torch = _module("torch")
    name = type(module).__name__
    try:
        exported = torch.export.export(module, example_args, dynamic_shapes=dynamic_shapes)
    except Exception as error:  # it runs the user's code, which may raise anything
        raise UsageError(
            f"torch.export cannot export {name} for these arguments: "
            f"{type(error).__name__}: {error}"
        ) from error
    return with_free_sizes(
        _lowered(exported, name), _free_sizes(exported), MAIN, resolve_options(choose, target)
    )


def _free_sizes(exported: Any) -> list[FreeSize]:
    """The sizes of tensors that are symbols, with the limits that torch.export has found."""
    tensors = {
        node.name: node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"
    }
    found = []
    for number, name in enumerate(exported.graph_signature.user_inputs):
        for axis, size in enumerate(getattr(tensors.get(name), "shape", ())):
            symbol = None if isinstance(size, int) else size.node.expr
            if symbol in exported.range_constraints:
                limits = exported.range_constraints[symbol]
                most = int(limits.upper) if limits.upper.is_Integer else None
                found.append(FreeSize(number, axis, str(symbol), int(limits.lower), most))
    return found


def _lowered(exported: Any, name: str) -> str:
    """The StableHLO of an exported program.

    Raises: UnsupportedOpError, UsageError.
    """
    fx, mlir = _module("torch_mlir.fx"), _module("torch_mlir.ir")
    importer = _module("torch_mlir.extras.fx_importer").FxImporter
    told: list[str] = []

    def tell(diagnostic: Any) -> bool:
        told.append(f"{diagnostic.location} {diagnostic.message}")
        return True  # printed nowhere else

    context = mlir.Context()
    _module("torch_mlir.dialects.torch").register_dialect(context)
    handler = context.attach_diagnostic_handler(tell)
    try:
        return str(
            fx.export_and_import(
                exported,
                output_type="stablehlo",
                func_name=MAIN,
                fx_importer=importer(context=context),
            )
        )
    except Exception as error:  # of several types, none of them documented
        text = "\n".join((*told, str(error)))
        operator, place = _OPERATOR.search(text), _PLACE.search(text)
        raise UnsupportedOpError(
            operator[1] if operator else name,
            "torch-mlir does not lower it to StableHLO"
            + (f", at {place[1]}:{place[2]}" if place else "")
            + ("" if operator else f": {text}"),
        ) from error
    finally:
        handler.detach()


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"from_torch needs {name.partition('.')[0].replace('_', '-')}, which "
            f"cannot be imported ({error}): pip install 'hlo-mlc[torch]'"
        ) from error
