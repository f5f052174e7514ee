"""`compile_stablehlo`: a StableHLO module, from wherever it comes, as a function on arrays."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

import jax
import numpy as np
from jax import export
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func, stablehlo

from hlo_mlc.explain import Explanation, explain
from hlo_mlc.frontend.parse import BYTECODE_MAGIC, parse_module
from hlo_mlc.frontend.sizes import write_rounded_sizes
from hlo_mlc.interop import compat, compat_exports
from hlo_mlc.interop.arguments import (
    ArgumentType,
    FreeSize,
    argument_types,
    not_in_range,
    result_types,
)
from hlo_mlc.interop.assertions import failed_assertion, without_assertions
from hlo_mlc.interop.by_shapes import ByShapes, Compiled
from hlo_mlc.interop.compiling import compile_extracted
from hlo_mlc.interop.devices import ALL_ROWS, ANY_ROWS
from hlo_mlc.interop.extraction import MAIN, extract, rename_to_main
from hlo_mlc.interop.faults import Faults
from hlo_mlc.interop.free_numbers import free_numbers, mark_numbers, write_numbers
from hlo_mlc.interop.function import resolve_options
from hlo_mlc.interop.jitted import MlcFunction, jitted
from hlo_mlc.interop.program import Execute, Program, Shapes, compile_as_jit
from hlo_mlc.interop.timeline import CALLS, Timeline, record_timeline
from hlo_mlc.report import Report
from hlo_mlc.runtime.files import path_of
from hlo_mlc.support.errors import FrontendError, MlcError, UnsupportedOpError, UsageError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import counted

with lazy_imports():
    from hlo_mlc.interop import tuning

_OTHER_ROWS = (1, 1365)
"""Rows that kernels are made for besides those of the first call: one row is computed by kernels
of its own, and what is left to XLA where there are few rows may not be where there are many."""

_ARGUMENTS = "builtin.module(stablehlo-refine-arguments{{types={types}}})"

stablehlo.register_stablehlo_passes()


def compile_stablehlo(
    module: str | bytes | os.PathLike[str] | export.Exported,
    *,
    entry: str = MAIN,
    target: str | None = None,
    choose: str | None = None,
) -> StablehloFunction:
    """The function `entry` of a StableHLO module, compiled.

    `module` is MLIR text, MLIR bytecode, a StableHLO portable artifact, what `jax.export` gives or
    has serialized, or the path of a file with one of these. `target` and `choose` are as for
    `mlc_jit`. A function with dynamic shapes is compiled for the shapes that it is called with, at
    the first such call. Inside of functions that JAX traces it is a call like others: under `jit`
    it is compiled as a part of them, `vmap` calls it for one element after the other, and of its
    derivative it says that there is none.

    Raises: FrontendError if the module is malformed or has no such entry, UnsupportedOpError if
    it cannot run as a function on arrays of one device, UsageError and UnknownTargetError for
    options.
    """
    content, options = _read(module), resolve_options(choose, target)
    try:
        return with_free_sizes(content, (), entry, options)
    except FrontendError as error:
        if not _is_path(module):
            raise
        text = f"{os.fspath(module)}: {error.args[0]}"
        raise FrontendError(text, location=error.location, context=error.context) from error


def with_free_sizes(
    module: str | bytes, sizes: Sequence[FreeSize], entry: str, options: Options
) -> StablehloFunction:
    """The same of what was read, where those of its sizes that are not known have limits."""
    parsed = parse_module(module)
    _require_one_device(parsed)
    return StablehloFunction(_extract_main(parsed, entry), entry, options, sizes)


class StablehloFunction:
    """A compiled StableHLO function: takes NumPy or JAX arrays, or others that DLPack lends without
    a copy, and returns a tuple of JAX arrays."""

    def __init__(
        self, module: ir.Module, name: str, options: Options, sizes: Sequence[FreeSize] = ()
    ) -> None:
        self._module = module
        self._sizes = tuple(sizes)
        self._name = name
        self._options = options
        self._arguments = argument_types(module, MAIN, name)
        shapes = tuple(argument.shape for argument in self._arguments)
        if not self._is_dynamic and any(None in r.shape for r in result_types(module, MAIN, name)):
            self._module = module = self._refine(shapes)
        self._programs = ByShapes(
            self._compile, options, self._for_other_rows if self._is_dynamic else None
        )
        self._faults = Faults()
        self.jitted = self._traceable()  # as one that JAX traces
        taken, returned = (
            ", ".join(map(str, types))
            for types in (self._arguments, result_types(module, MAIN, name))
        )
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"@{name} of a StableHLO module: ({taken}) -> ({returned})."
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(f"arg{n}", inspect.Parameter.POSITIONAL_ONLY, annotation=str(one))
                for n, one in enumerate(self._arguments)
            ]
        )
        if not self._is_dynamic:
            self._programs.of(shapes)

    def __call__(self, *arrays: Any) -> tuple[jax.Array, ...]:
        """Runs the function, or makes it a part of one that JAX traces.

        Raises: UsageError if the arrays are not what the function takes.
        """
        arrays = tuple(map(_taken, arrays))
        self._check(arrays)
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            return self.jitted(*arrays)
        return self._run(arrays)

    @overload
    def trace(self, *args: Any) -> jax.stages.Traced: ...
    @overload
    def trace(self, *args: Any, path: str | os.PathLike[str], calls: int = ...) -> Timeline: ...
    def trace(
        self, *args: Any, path: str | os.PathLike[str] | None = None, calls: int = CALLS
    ) -> jax.stages.Traced | Timeline:
        """The function traced for such arguments, arrays or their types, as by `jax.jit`. With a
        `path`, a few calls on arrays are run and what ran when is written there, as by `trace` of
        what `mlc_jit` returns."""
        self._check(args, allowed=jax.ShapeDtypeStruct)
        if path is not None:
            return record_timeline(
                f"@{self._name}",
                self,
                functools.partial(self.report, *args),
                args,
                {},
                path,
                calls,
                donates=False,
            )
        with jax.enable_x64(True):  # exactly these types
            return self.jitted.trace(*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """The function lowered for such arguments, as by `jax.jit`."""
        self._check(args, allowed=jax.ShapeDtypeStruct)
        with jax.enable_x64(True):
            return self.jitted.lower(*args)

    def eval_shape(self, *args: Any) -> Any:
        """The types of the results for such arguments."""
        return self.trace(*args).out_info

    def clear_cache(self) -> None:
        """Forgets all that was compiled of the function."""
        self._programs.clear()
        self.jitted.clear_cache()

    def report(self, *args: Any) -> Report:
        """What was compiled and what stays with XLA: for such arguments, arrays or their types;
        without any, of the latest shapes if they are dynamic. Its `html(path)` writes a page for a
        browser.

        Raises: UsageError for a function with dynamic shapes that was not called yet.
        """
        return replace(self._report(args), page=lambda path: self.explain(*args).html(path))

    def _report(self, args: Sequence[Any]) -> Report:
        if args:
            self._check(args, allowed=jax.ShapeDtypeStruct)
            return self._programs.of(tuple(tuple(array.shape) for array in args)).report
        if self._programs.latest is None:
            raise UsageError(
                f"@{self._name} has dynamic shapes and is compiled when it is called: "
                "call it before you ask for a report"
            )
        return self._programs.latest.report

    def explain(self, *args: Any, verbose: bool = False) -> Explanation:
        """Where the time of a call goes, to be printed: in 30 lines at most, or with all that is
        known if `verbose`; its `as_dict()` is for machines, `html(path)` writes a page for a
        browser. Each kernel is timed."""
        report = self._report(args)
        known = self._programs.reported(report)

        def compile_again(options: Options) -> Report:
            shapes, platform = known
            return self._compiled_module(shapes, platform, options)[2]

        return explain(
            report,
            self._options,
            f"@{self._name}",
            verbose,
            compile_again if known is not None else None,
        )

    def tune(
        self,
        *args: Any,
        trials: int | None = None,
        minutes: float | None = None,
        storage: str | None = None,
    ) -> Any:
        """Tunes the function's kernels until each was tried in so many ways, or else until next
        to nothing is expected of another trial, for so many minutes in all at most; says what came
        of it. Calls from now on run what is recorded then. `storage` is as for `MlcFunction.tune`.

        `args` are arrays to measure with. Without any, or for types (`jax.ShapeDtypeStruct`, for
        a function with dynamic shapes), operands are made up.

        Raises: UsageError for arguments that the function does not take, or none where it has
        dynamic shapes.
        """
        if args:
            self._check(args, allowed=jax.ShapeDtypeStruct)
        elif self._is_dynamic:
            raise UsageError(
                f"@{self._name} has dynamic shapes: say for which arguments to tune "
                f"it, {', '.join(map(str, self._arguments))}"
            )
        shapes = tuple(tuple(argument.shape) for argument in args or self._arguments)
        types_only = not args or any(isinstance(a, jax.ShapeDtypeStruct) for a in args)
        report = tuning.tune_module(
            self._module_for(shapes),
            self._options,
            trials=trials,
            minutes=minutes,
            storage=storage,
            given=None if types_only else list(map(np.asarray, args)),
        )
        self._programs.clear()
        self._programs.of(shapes)
        return report

    def __repr__(self) -> str:
        return f"<StablehloFunction {self.__doc__.rstrip('.')}>"

    def _traceable(self) -> MlcFunction[..., tuple[jax.Array, ...]]:
        """The function for JAX to trace."""
        program = Program(self._name, self._module_for, self._results, self._run)
        return jitted(program.traceable(), self._options, {})

    def _run(self, arrays: Sequence[Any]) -> tuple[jax.Array, ...]:
        return self._programs.called(arrays).execute(arrays)

    def _module_for(self, shapes: Shapes) -> ir.Module:
        """A copy of the module for arguments of these shapes."""
        return self._refine(shapes) if self._is_dynamic else _extract_main(self._module, MAIN)

    def _results(self, shapes: Shapes) -> tuple[ArgumentType, ...]:
        module = self._refine(shapes) if self._is_dynamic else self._module
        return result_types(module, MAIN, self._name)

    @property
    def _is_dynamic(self) -> bool:
        return any(None in argument.shape for argument in self._arguments)

    def _check(self, arrays: tuple[Any, ...], allowed: type | tuple[()] = ()) -> None:
        if len(arrays) != len(self._arguments):
            raise UsageError(
                f"@{self._name} takes {counted(len(self._arguments), 'argument')} "
                f"({', '.join(map(str, self._arguments))}), got {len(arrays)}"
            )
        for index, (expected, array) in enumerate(zip(self._arguments, arrays, strict=True)):
            if not isinstance(array, (np.ndarray, np.generic, jax.Array, allowed)):
                raise UsageError(
                    f"Argument {index} of @{self._name}: expected an array {expected}, "
                    f"got {type(array).__name__}; convert it with numpy.asarray"
                )
            if not expected.accepts(array):
                got = ArgumentType(array.shape, array.dtype)
                narrow = jax.dtypes.canonicalize_dtype(expected.dtype)
                hint = (
                    "; JAX has 64-bit types inside of functions only with jax_enable_x64"
                    if isinstance(array, jax.core.Tracer) and narrow != expected.dtype
                    else ""
                )
                raise UsageError(
                    f"Argument {index} of @{self._name}: expected {expected}, got {got}{hint}"
                )
        if said := not_in_range(self._sizes, arrays):
            raise UsageError(f"@{self._name}: {said}")

    def _compile(self, shapes: Shapes, platform: str, options: Options) -> Compiled:
        module, compiled, report = self._compiled_module(shapes, platform, options)
        try:
            execute = self._by_jit(compiled or module, shapes) or compat.compile_for(
                compiled or module
            )
            return Compiled(execute, report, platform)
        except jax.errors.JaxRuntimeError as error:
            raise UnsupportedOpError(
                f"@{self._name}",
                f"XLA cannot compile it ({error}); custom calls are registered "
                "with jax.ffi.register_ffi_target beforehand",
            ) from error

    def _compiled_module(
        self, shapes: Shapes, platform: str, options: Options
    ) -> tuple[ir.Module, ir.Module | None, Report]:
        """The module for arguments of these shapes; what was made of it, and the report on that, as
        by `compile_extracted`."""
        shares = platform in (ANY_ROWS, ALL_ROWS)
        module = self._refine(shapes, shares) if self._is_dynamic else self._module
        numbers = free_numbers(module, MAIN) if shares else []
        compiled, report = compile_extracted(
            _extract_main(module, MAIN),
            options,
            entry=MAIN,
            platform=platform,
            faults=self._faults,
            row_axes=self._row_axes(shapes) if shares else None,
        )
        for one in (module, compiled) if numbers else ():
            if one is not None:
                write_numbers(one, MAIN, numbers)
        return module, compiled, report

    def _for_other_rows(self, shapes: Shapes) -> Iterator[Report]:
        """Has the kernels made that the function needs for arguments of other numbers of rows, and
        reports on them; what fails does so once more where it is needed."""
        quiet = self._options.replace(dump_dir=None)
        for one in dict.fromkeys((shapes, *(self._with_rows(shapes, n) for n in _OTHER_ROWS))):
            with contextlib.suppress(MlcError):
                yield self._compiled_module(one, ALL_ROWS, quiet)[2]

    def _row_axes(self, shapes: Shapes) -> dict[int, int]:
        """The axes of arguments that are as long as the first dimension which is free, of one where
        none is the first of its argument, and free as well: there may be any number of rows along
        them."""
        free = [
            (n, axis, shapes[n][axis])
            for n, argument in enumerate(self._arguments)
            for axis, size in enumerate(argument.shape)
            if size is None
        ]
        rows = min(free, key=lambda one: one[1] > 0, default=(0, 0, None))[2]
        return {n: axis for n, axis, size in reversed(free) if size == rows}

    def _with_rows(self, shapes: Shapes, rows: int) -> Shapes:
        """The shapes with so many rows."""
        axes = self._row_axes(shapes)
        return tuple(
            tuple(rows if axes.get(n) == axis else size for axis, size in enumerate(shape))
            for n, shape in enumerate(shapes)
        )

    def _by_jit(self, module: ir.Module, shapes: Shapes) -> Execute | None:
        arguments = [
            replace(one, shape=shape) for one, shape in zip(self._arguments, shapes, strict=True)
        ]
        return compile_as_jit(self._name, module, arguments, result_types(module, MAIN, self._name))

    def _refine(self, shapes: Shapes, marks_numbers: bool = False) -> ir.Module:
        """The module with all its shapes static, for arguments of these shapes.

        Raises: UnsupportedOpError if some shapes do not follow from those of the arguments,
        UsageError if the module says that it is not for these.
        """
        module = _extract_main(self._module, MAIN)
        if said := failed_assertion(module, shapes):
            raise UsageError(f"@{self._name} is not for these arguments: {said}")
        without_assertions(module)
        write_rounded_sizes(module, MAIN, shapes)
        if marks_numbers:
            mark_numbers(module)
        function = ir.SymbolTable(module.operation)[MAIN]
        with module.context, ir.Location.unknown():
            types = [
                ir.RankedTensorType.get(shape, ir.RankedTensorType(given).element_type)
                for shape, given in zip(shapes, function.type.inputs, strict=True)
            ]
            pipeline = _ARGUMENTS.format(types=",".join(map(str, types)))
            try:
                passmanager.PassManager.parse(pipeline).run(module.operation)
                module = compat_exports.resolved(module)
            except (ir.MLIRError, ValueError) as error:
                raise UnsupportedOpError(
                    f"@{self._name}", f"its dynamic shapes cannot be resolved: {error}"
                ) from error
        results = ir.SymbolTable(module.operation)[MAIN].type.results
        if not all(ir.RankedTensorType(result).has_static_shape for result in results):
            raise UnsupportedOpError(
                f"@{self._name}",
                "the shapes of its results depend on more than the shapes of its arguments: "
                + ", ".join(map(str, results)),
            )
        return module


def _taken(array: Any) -> Any:
    """What somebody else's array is to JAX: the same memory, where it can be."""
    if isinstance(array, np.ndarray | np.generic | jax.Array) or not hasattr(array, "__dlpack__"):
        return array
    if getattr(array, "requires_grad", False):
        array = array.detach()
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError):  # of a type that NumPy has not, such as bf16
        # JAX reads what is not in rows as if it were.
        return jax.dlpack.from_dlpack(getattr(array, "contiguous", lambda: array)())


def _read(module: str | bytes | os.PathLike[str] | export.Exported) -> str | bytes:
    """The contents of a module, from a file if what is given is a path."""
    if isinstance(module, export.Exported):
        return module.mlir_module_serialized
    if isinstance(module, str) and not module:
        raise UsageError("expected StableHLO text or the path of a file, got an empty text")
    if isinstance(module, bytes | bytearray | memoryview):
        return _module_in(bytes(module))
    if isinstance(module, str) and not _is_path(module):
        return module
    if not _is_path(module):
        raise UsageError(
            "expected a StableHLO module as text, bytes or path, or an exported "
            f"function, got {type(module).__name__}{_how_else(module)}"
        )
    try:
        return _module_in(path_of(module).read_bytes())
    except OSError as error:
        raise UsageError(
            f"expected StableHLO text or the path of a file, got {str(module)!r}: "
            f"{error.strerror or error}"
        ) from error


def _is_path(module: object) -> bool:
    """Whether a module is given by the path of its file, which no text of one looks like."""
    if isinstance(module, str):
        return "\n" not in module and "{" not in module
    return isinstance(module, os.PathLike)


def _how_else(module: object) -> str:
    """What to do with something that is no module, but close to one."""
    if isinstance(module, jax.stages.Lowered):
        return "; give its as_text()"
    return "; a function of JAX is for mlc_jit" if callable(module) else ""


def _module_in(content: bytes) -> bytes:
    """The module, also where it is part of an exported function that was serialized."""
    if BYTECODE_MAGIC not in content or content.startswith(BYTECODE_MAGIC):
        return content
    try:
        return export.deserialize(bytearray(content)).mlir_module_serialized
    except Exception:  # whatever the reader of such a file raises of others
        return content


def _require_one_device(module: ir.Module) -> None:
    for kind in ("partitions", "replicas"):
        name = f"mhlo.num_{kind}"
        attributes = module.operation.attributes
        if name in attributes and ir.IntegerAttr(attributes[name]).value > 1:
            raise UnsupportedOpError(
                name, f"a module for {attributes[name]} {kind} does not run on one device"
            )


def _extract_main(module: ir.Module, entry: str) -> ir.Module:
    """A copy of @entry and all that it calls, where its name is @main."""
    functions = [
        operation for operation in module.body.operations if isinstance(operation, func.FuncOp)
    ]
    names = [function.name.value for function in functions]
    if entry not in names:
        found = ", ".join(f"@{name}" for name in names) or "none"
        raise FrontendError(f"The module has no function @{entry}; its functions are: {found}")
    extracted = extract(module, ir.SymbolTable(module.operation), entry)
    rename_to_main(extracted, entry)
    return extracted
