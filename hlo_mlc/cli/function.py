"""From what is typed on a command line to a function and the arguments to look at it with."""

from __future__ import annotations

import importlib
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import SymbolicScope

from hlo_mlc.support.errors import UsageError, did_you_mean

_SIZE = r"(\d+|[A-Za-z_]\w*)"
_ARGUMENT = re.compile(rf"(?P<dtype>[a-z0-9]+)\[(?P<sizes>({_SIZE}(,{_SIZE})*)?)\]")
_SUFFIXES = (".mlir", ".mlirbc", ".bc", ".stablehlo", ".mlc")

_DTYPES = {
    "bool": jnp.bool_,
    "i1": jnp.bool_,
    "bf16": jnp.bfloat16,
    **{f"f{bits}": getattr(jnp, f"float{bits}") for bits in (16, 32, 64)},
    **{f"c{bits}": getattr(jnp, f"complex{bits}") for bits in (64, 128)},
    **{f"i{bits}": getattr(jnp, f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": getattr(jnp, f"uint{bits}") for bits in (8, 16, 32, 64)},
}


def parse_argument(text: str, symbols: SymbolicScope | None = None) -> jax.ShapeDtypeStruct:
    """`f32[512,1024]` -> the type of an argument; `f32[]` is a scalar. Where `symbols` are given,
    a size may be one of them, as in `f32[batch,1024]`.

    Raises: UsageError for anything else.
    """
    match = _ARGUMENT.fullmatch(text.replace(" ", ""))
    if match is None:
        raise UsageError(f"An argument is written like f32[512,1024] or i32[], not {text!r}")
    if match["dtype"] not in _DTYPES:
        raise UsageError(
            f"Argument {text!r}: there is no dtype {match['dtype']!r}; "
            f"there are {', '.join(_DTYPES)}"
        )
    dtype = jnp.dtype(_DTYPES[match["dtype"]])
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UsageError(f"Argument {text!r}: JAX takes 64-bit types only with --x64")
    sizes = [size for size in match["sizes"].split(",") if size]
    if symbols is not None:
        shape = jax.export.symbolic_shape(",".join(sizes), scope=symbols)
        return jax.ShapeDtypeStruct(shape, dtype)
    if not all(size.isdecimal() for size in sizes):
        raise UsageError(f"Argument {text!r}: sizes are numbers here; only a file of "
                         "`hlo-mlc export` can be for all of them")
    return jax.ShapeDtypeStruct([int(size) for size in sizes], dtype)


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
    """Whether what is typed means a file, rather than MODULE:FUNCTION.

    Raises: UsageError for the name of a file that is not there.
    """
    if Path(program).is_file():
        return True
    if Path(program).is_dir():
        raise UsageError(f"{program!r} is a folder; expected a file or MODULE:FUNCTION")
    if program.endswith(_SUFFIXES):
        raise UsageError(f"There is no file {program!r}")
    return False


def resolve(text: str) -> Callable[..., Any]:
    """`package.module:name` -> the function, with the current folder searched first.

    Raises: UsageError when the module cannot be imported or has no such function.
    """
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        raise UsageError(f"There is no file {text!r}, and a function is given as MODULE:FUNCTION")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except Exception as error:  # a module runs the user's code, which may raise anything
        raise UsageError(
            f"Cannot import {module_name!r}: {type(error).__name__}: {error}"
        ) from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{text!r}: there is no {name!r} in {module_name!r}"
                             f"{did_you_mean(name, dir(found))}")
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{text!r} is {type(found).__name__}, not a function")
    return found


def check_traceable(name: str, function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Makes sure that JAX can trace the function with these arguments.

    Raises: UsageError with the first line of what the function raised.
    """
    try:
        jax.eval_shape(function, *args)
    except Exception as error:  # the function is the user's code, which may raise anything
        first_line = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"{name} cannot be traced with these arguments: {type(error).__name__}: {first_line}"
        ) from error


def arguments(function: Callable[..., Any], given: Sequence[str],
              symbols: SymbolicScope | None = None) -> tuple[Any, ...]:
    """The arguments written on the command line, else the function's own `example_args`.

    `example_args` is a sequence of arguments, or a function without parameters that makes one.

    Raises: UsageError when there are neither.
    """
    if given:
        return tuple(parse_argument(text, symbols) for text in given)
    example = getattr(function, "example_args", None)
    if example is None:
        raise UsageError(
            "Say what the function is called with: --arg f32[512,1024] for each argument, "
            "or an attribute `example_args` of the function"
        )
    return tuple(example() if callable(example) else example)
