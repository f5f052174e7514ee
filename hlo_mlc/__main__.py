"""`python -m hlo_mlc script.py`: a program as it is, with every `jax.jit` through our compiler."""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys
from pathlib import Path

from hlo_mlc.support.errors import MlcError

_USAGE = """\
usage: python -m hlo_mlc script.py [arguments]
       python -m hlo_mlc -m module [arguments]

Runs a Python program with every function that it or its libraries give to jax.jit compiled by
hlo_mlc (see hlo_mlc.install). HLO_MLC_CHOOSE and the other options of the environment hold; the
command hlo-mlc does all else.
"""
_MISUSE = 2  # as Python's own


def main() -> int | str | None:
    """Runs what the command line names, as Python would."""
    match sys.argv[1:]:
        case ["-h" | "--help", *_]:
            print(_USAGE, end="")
            return 0
        case ["-m", module, *arguments]:
            sys.argv = [module, *arguments]  # the name becomes the module's file
            _install()
            if not _is_module(module):
                print(f"error: there is no module {module}", file=sys.stderr)
                return _MISUSE
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case [script, *arguments] if not script.startswith("-"):
            if not _is_program(Path(script)):
                hint = "" if Path(script).suffix else f" (as a command: hlo-mlc {script})"
                print(f"error: there is no program {script}{hint}", file=sys.stderr)
                return _MISUSE
            sys.argv = [script, *arguments]
            if not sys.flags.safe_path:
                sys.path[0] = str(Path(script).resolve().parent)
            _install()
            runpy.run_path(script, run_name="__main__")
        case _:
            print(_USAGE, end="", file=sys.stderr)
            return _MISUSE
    return None


def _is_program(path: Path) -> bool:
    """Whether Python would run it: a file, or a folder that says how it begins."""
    return path.is_file() or (path / "__main__.py").is_file()


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):  # it, or a package that it would be in
            return False
        raise  # something that such a package imports


def _install() -> None:
    try:
        # At first use: JAX takes a second to import, which help and mistakes do not wait for.
        importlib.import_module("hlo_mlc.interop.routing").install()
    except MlcError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    sys.exit(main())
