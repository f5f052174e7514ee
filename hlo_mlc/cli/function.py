"""From what is typed on a command line to a function and the arguments to look at it with."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import math
import os
import re
import sys
import traceback
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import SymbolicScope

from hlo_mlc import compile_stablehlo
from hlo_mlc.cli.parameters import ENTRY
from hlo_mlc.explain import Explanation
from hlo_mlc.expr.dtypes import FLOATS_OF_A_BYTE
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.interop.jitted import MlcFunction
from hlo_mlc.interop.onnx.models import from_onnx
from hlo_mlc.support.errors import UnsupportedOpError, UsageError, did_you_mean
from hlo_mlc.support.warning import is_internal

_SIZE = r"\s*(\d+|[A-Za-z_]\w*)\s*"
_ARGUMENT = re.compile(rf"\s*(?P<dtype>[a-z0-9_]+)\s*\[(?P<sizes>({_SIZE}(,{_SIZE})*)?)\s*\]\s*")
_ONNX = ".onnx"
_SUFFIXES = (".mlir", ".mlirbc", ".bc", ".stablehlo", ".mlc")

_DTYPES = {
    "bool": jnp.bool_,
    "i1": jnp.bool_,
    "bf16": jnp.bfloat16,
    **{f"f{bits}": getattr(jnp, f"float{bits}") for bits in (16, 32, 64)},
    **{f"c{bits}": getattr(jnp, f"complex{bits}") for bits in (64, 128)},
    **{f"i{bits}": getattr(jnp, f"int{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": getattr(jnp, f"uint{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{dtype.numpy.name: dtype.numpy for dtype in FLOATS_OF_A_BYTE},
}
# XLA, which also writes f32[512,1024], has other names for what StableHLO calls i1, i32, ….
_BY_ANY_NAME = {
    **_DTYPES,
    "pred": jnp.bool_,
    **{f"s{name[1:]}": dtype for name, dtype in _DTYPES.items() if name.startswith("i")},
    **{jnp.dtype(dtype).name: dtype for dtype in _DTYPES.values()},
}
_MOST_BYTES = np.iinfo(np.int64).max

# What files begin with that somebody may take for programs. Source: ELF specification; ar(5);
# numpy.lib.format.
_LIBRARIES = (b"\x7fELF", b"!<arch>\n", b"!<thin>\n")
_ARRAYS = b"\x93NUMPY"


def parse_argument(text: str, symbols: SymbolicScope | None = None) -> jax.ShapeDtypeStruct:
    """`f32[512,1024]` or `float32[512,1024]` -> the type of an argument; `f32[]` is a scalar.
    Where `symbols` are given, a size may be one of them, as in `f32[batch,1024]`.

    Raises: UsageError for anything else.
    """
    match = _ARGUMENT.fullmatch(text)
    if match is None:
        raise UsageError(f"An argument is written like f32[512,1024] or i32[], not {text!r}")
    if match["dtype"] not in _BY_ANY_NAME:
        raise UsageError(
            f"Argument {text!r}: there is no dtype {match['dtype']!r}"
            f"{did_you_mean(match['dtype'], _BY_ANY_NAME)}; there are {', '.join(_DTYPES)}"
        )
    dtype = jnp.dtype(_BY_ANY_NAME[match["dtype"]])
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UsageError(f"Argument {text!r}: JAX takes 64-bit types only with --x64")
    sizes = [size.strip() for size in match["sizes"].split(",") if size.strip()]
    known = [int(size) for size in sizes if size.isdecimal()]
    if math.prod(known) * dtype.itemsize > _MOST_BYTES or max(known, default=0) > _MOST_BYTES:
        raise UsageError(f"Argument {text!r}: no array has so many elements")
    if symbols is not None:
        shape = jax.export.symbolic_shape(",".join(sizes), scope=symbols)
        return jax.ShapeDtypeStruct(shape, dtype)
    if not all(size.isdecimal() for size in sizes):
        raise UsageError(
            f"Argument {text!r}: sizes are numbers here; only a file of "
            "`hlo-mlc export` can be for all of them"
        )
    return jax.ShapeDtypeStruct(known, dtype)


def read_arrays(paths: Sequence[Path]) -> tuple[np.ndarray, ...]:
    """The arrays in .npy files, and all those in .npz files, in order. Nothing is unpickled.

    Raises: UsageError for what is no such file.
    """
    arrays: list[np.ndarray] = []
    for path in paths:
        try:
            content = np.load(path, allow_pickle=False)
            if isinstance(content, np.ndarray):
                arrays.append(content)
            else:
                with content:
                    arrays += content.values()
        except OSError as error:
            raise UsageError(f"Cannot read {path}: {error.strerror or error}") from error
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"{path} is no .npy or .npz file of numbers") from error
    # NumPy writes bfloat16 as two bytes of nothing in particular.
    return tuple(a.view(jnp.bfloat16) if a.dtype == np.dtype("V2") else a for a in arrays)


def is_file(program: str) -> bool:
    """Whether what is typed means a file with a module, rather than MODULE:FUNCTION or an ONNX
    model, which are functions of JAX.

    Raises: UsageError for the name of a file that is not there, or that holds no module.
    """
    if program.endswith(_ONNX):
        return False
    if os.path.isfile(program):  # not so a name that is too long for one
        _check_content(Path(program))
        return True
    if os.path.isdir(program):
        raise UsageError(f"{program!r} is a folder; expected a file or MODULE:FUNCTION")
    if program.endswith(_SUFFIXES):
        raise UsageError(f"There is no file {program!r}")
    return False


def _check_content(path: Path) -> None:
    """Raises: UsageError for a file that is no StableHLO module, with what to give instead."""
    if path.suffix == ".py":
        raise UsageError(f"{path} is a Python file: say which function, as {path}:FUNCTION")
    try:
        with path.open("rb") as file:
            beginning = file.read(max(map(len, (*_LIBRARIES, _ARRAYS))))
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}") from error
    if not beginning:
        raise UsageError(f"{path} is empty; expected a StableHLO module")
    if beginning.startswith(_LIBRARIES):
        raise UsageError(
            f"{path} is a library of machine code, which does not say what it was "
            "made of; expected a StableHLO module, a file of `hlo-mlc export` "
            "(--format jax), or MODULE:FUNCTION"
        )
    if beginning.startswith(_ARRAYS):
        raise UsageError(
            f"{path} is an array, for --arg-file to name; expected a StableHLO module, a file of "
            "`hlo-mlc export`, or MODULE:FUNCTION"
        )


def resolve(text: str) -> Callable[..., Any]:
    """`package.module:name` or `file.py:name` -> the function, with the current folder (or the
    file's) searched first for what is imported; `model.onnx` -> the function that it is.

    Raises: UsageError when the module cannot be imported or has no such function; what `from_onnx`
    raises.
    """
    if text.endswith(_ONNX):
        return from_onnx(text)
    module_name, _, path = text.rpartition(":")
    if not module_name or not path:
        raise UsageError(f"There is no file {text!r}, and a function is given as MODULE:FUNCTION")
    try:
        found = _imported(module_name)
    except UsageError:
        raise
    except Exception as error:  # a module runs the user's code, which may raise anything
        raise UsageError(
            f"Cannot import {module_name!r}: {type(error).__name__}: {error}{_raised_at(error)}"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(
                f"{text!r}: there is no {name!r} in {module_name!r}{did_you_mean(name, dir(found))}"
            )
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{text!r} is of type {type(found).__name__}, not a function")
    return found


def _imported(name: str) -> ModuleType:
    """The module of this name, or in the file of this name.

    Raises: UsageError for a file that holds none; whatever the module raises.
    """
    file = Path(name)
    if file.suffix != ".py":
        if file.is_file() or os.sep in name:
            raise UsageError(
                f"{name!r} is no module of Python; a function is given as "
                "MODULE:FUNCTION or FILE.py:FUNCTION"
            )
        _search_first(Path.cwd())
        return importlib.import_module(name)
    if not file.is_file():
        raise UsageError(
            f"There is no file {name!r}; a function is given as MODULE:FUNCTION or FILE.py:FUNCTION"
        )
    _search_first(file.absolute().parent)
    # Under its own name, which its classes are found by, unless another module has that.
    module_name = file.stem if file.stem not in sys.modules else str(file.absolute())
    spec = importlib.util.spec_from_file_location(module_name, file.absolute())
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def is_function(text: str) -> bool:
    """Whether a name can only mean a function: MODULE:FUNCTION, or an ONNX model."""
    return ":" in text or text.endswith(_ONNX)


def entry_name(text: str) -> str:
    """What a function is called in a file of several: its own name, or its model's."""
    if text.endswith(_ONNX):
        return Path(text).stem
    return text.rpartition(":")[2].rpartition(".")[2]


def check_traceable(name: str, function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Makes sure that JAX can trace the function with these arguments.

    Raises: UsageError with the first line of what the function raised.
    """
    try:
        jax.eval_shape(function, *args)
    except UnsupportedOpError:  # of ours: an operator of a model
        raise
    except Exception as error:  # the function is the user's code, which may raise anything
        first_line = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"{name} cannot be traced with these arguments: {type(error).__name__}: {first_line}"
            f"{_raised_at(error)}"
        ) from error


def _raised_at(error: Exception) -> str:
    """` (at model.py:6)`, the innermost line that is neither ours, nor JAX's, nor one of those that
    import modules; "" for none."""
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not is_internal(frame.f_code.co_filename)
        and frame.f_globals.get("__name__", "").partition(".")[0] != "importlib"
    ]
    return f" (at {Path(lines[-1][0]).name}:{lines[-1][1]})" if lines else ""


def arguments(
    program: str,
    function: Callable[..., Any],
    given: Sequence[str],
    symbols: SymbolicScope | None = None,
) -> tuple[Any, ...]:
    """The arguments written on the command line, else the function's own `example_args`.

    `example_args` is a sequence of arguments, or a function without parameters that makes one. A
    function without parameters needs neither.

    Raises: UsageError when there are neither.
    """
    if given:
        return tuple(parse_argument(text, symbols) for text in given)
    example = getattr(function, "example_args", None)
    if example is None:
        with contextlib.suppress(TypeError, ValueError):  # of what is written in C
            if not inspect.signature(function).parameters:
                return ()
        raise UsageError(
            f"Say what {program} is called with: --arg f32[512,1024] for each argument, "
            "or an attribute `example_args` of the function"
        )
    if callable(example):
        try:
            example = example()
        except Exception as error:  # the user's code, which may raise anything
            raise UsageError(
                f"The `example_args` of {program} raised {type(error).__name__}: {error}"
                f"{_raised_at(error)}"
            ) from error
    if not isinstance(example, tuple | list):
        raise UsageError(
            f"The `example_args` of {program}: expected a tuple of arguments, or a function that "
            f"makes one, got {type(example).__name__}; a single argument is written (x,)"
        )
    return tuple(example)


def given_function(
    program: str,
    given: Sequence[str],
    files: Sequence[Path] = (),
    symbols: SymbolicScope | None = None,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function that MODULE:FUNCTION names, and what to call it with.

    Raises: UsageError for what is no function, or arguments that it does not take.
    """
    require_one_way(given, files)
    function = resolve(program)
    args = read_arrays(files) if files else arguments(program, function, given, symbols)
    check_traceable(program, function, args)
    return function, args


def require_one_way(given: Sequence[str], files: Sequence[Path]) -> None:
    """Raises: UsageError for arguments that are given in two ways."""
    if given and files:
        raise UsageError("Give arguments by --arg or by --arg-file, not by both")


def refuse_entry(program: str, entry: str) -> None:
    """Raises: UsageError for the entry of what is no file with a module of several."""
    if entry != ENTRY:
        raise UsageError(f"--entry is for a file with a StableHLO module, which {program} is not")


def refuse_arguments(given: Sequence[str], files: Sequence[Path]) -> None:
    """Raises: UsageError for arguments of a file with a module, which says itself what it takes."""
    if given or files:
        raise UsageError(
            "--arg and --arg-file are for MODULE:FUNCTION: a StableHLO file says "
            "itself what it takes"
        )


def explained(
    program: str,
    given: Sequence[str],
    files: Sequence[Path],
    entry: str,
    choose: str,
    target: str,
    verbose: bool = False,
) -> Explanation:
    """What becomes of a file with a module, or of a function.

    Raises: UsageError for what is neither, and arguments or an entry that it does not take.
    """
    if is_file(program):
        refuse_arguments(given, files)
        module = compile_stablehlo(Path(program), entry=entry, choose=choose, target=target)
        return module.explain(verbose=verbose)
    refuse_entry(program, entry)
    function, args = given_function(program, given, files)
    return by_us(function, choose, target).explain(*args, verbose=verbose)


def by_us(
    function: Any, choose: str | None = None, target: str | None = None
) -> MlcFunction[..., Any]:
    """The function as `mlc_jit` returns it, with this choice for this target."""
    if hasattr(function, "choosing"):
        return function.choosing(choose or function.choose, target)
    return mlc_jit(function, choose=choose, target=target)
