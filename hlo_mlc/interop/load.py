"""Loading what `interop/export.py` wrote: a file in, a function that runs its kernels out.

Nothing in a file is unpickled. But it holds machine code, which runs with the rights of the
process: loading a file is trusting its author as one trusts a program that one starts.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import jax
import ml_dtypes
import numpy as np

from hlo_mlc.interop import compat, compat_exports
from hlo_mlc.interop.bundle_reader import PLATFORMS, Platform, target_line
from hlo_mlc.interop.calling import check_call
from hlo_mlc.interop.jit_object import JitObject
from hlo_mlc.runtime import library
from hlo_mlc.runtime.archive import FORMAT, Archive, read_archive
from hlo_mlc.runtime.files import path_of
from hlo_mlc.support.errors import ArchiveError, UsageError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.warning import warn
from hlo_mlc.support.wording import byte_size, counted

with lazy_imports():
    from hlo_mlc.interop import open_sizes

_EMBEDDED = "<embedded values>"  # no name that a caller may use


@dataclass(frozen=True, slots=True)
class LoadedReport:
    """What of a loaded function runs in kernels out of its file; `str` of it is for a person."""

    path: Path
    name: str
    types: str
    coverage: float  # the share of its operations that are in kernels
    nests: Mapping[str, Sequence[str]]  # of each kernel by its name, how it is computed
    target: str | None  # for which the kernels were compiled that run here; None without any
    has_open_sizes: bool  # it is compiled for those of each call, with these kernels among others
    parameters: inspect.Signature

    @property
    def headline(self) -> str:
        return f"{self.name} of {self.path}: {self.types}"

    def __str__(self) -> str:
        if self.target is None:
            what = (
                "it is compiled for the sizes of each call"
                if self.has_open_sizes
                else "XLA compiles all of it"
            )
            return f"{self.headline}\n{what}"
        lines = [
            self.headline,
            f"{self.coverage:.0%} of the operations in "
            f"{counted(len(self.nests), 'kernel')}, compiled for {self.target}",
        ]
        for kernel, nests in self.nests.items():
            lines += [f"  {kernel}", *(f"    {nest}" for nest in nests)]
        return "\n".join(lines)


def load(path: str | os.PathLike[str], *, entry: str | None = None) -> LoadedFunction:
    """A function out of a file that `hlo_mlc.export` wrote, as `jax.jit` gives it.

    `entry` names the one that is wanted if there are several. Its kernels are ready: those for the
    best of the file's targets that this machine can run. If it can run none of them, XLA compiles
    the original program, which is a warning.

    Load only files of people whose programs you would run: a file holds machine code.

    Raises: ArchiveError for a file that is damaged, or is for another kind of machine or other
    versions; UsageError for one that cannot be read or has no such entry.
    """
    path = path_of(path)
    archive = read_archive(path)
    try:
        platform = _platform(path, archive)
        chosen = _choose_entry(path, archive, entry)
        target = _publish(path, archive, chosen, platform) if chosen["kernels"] else None
        original = chosen["kernels"] and target is None
        block = archive.blocks[chosen["original" if original else "program"]]
        leaves = [_leaf(leaf, archive.blocks[leaf["block"]]) for leaf in chosen["leaves"]]
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise ArchiveError(f"{path} is malformed: {type(error).__name__}: {error}") from error
    return _function(
        path, chosen, _deserialized(path, block), leaves if chosen["embeds"] else None, target
    )


def describe(path: str | os.PathLike[str]) -> str:
    """What is in such a file, in words; nothing of it is run.

    Raises: ArchiveError, UsageError as `load` does.
    """
    path = path_of(path)
    archive = read_archive(path)
    description = archive.description
    try:
        lines = [
            f"{path}: exported with JAX {description['versions']['jax']}, "
            f"{byte_size(sum(map(len, archive.blocks.values())))}"
        ]
        for one in description["entries"]:
            lines.append(f"entry {one['name']}: {one['signature']}")
            embedded = sum(len(archive.blocks[leaf["block"]]) for leaf in one["leaves"])
            facts = [
                f"{one['coverage']:.0%} of the operations in "
                f"{counted(len(one['kernels']), 'kernel')}",
                f"program of {byte_size(len(archive.blocks[one['program']]))}",
            ]
            facts += [f"{byte_size(embedded)} of embedded values"] if embedded else []
            if one["vjp_order"]:
                facts.append(f"differentiable {_often(one['vjp_order'])}")
            lines.append(f"  {', '.join(facts)}")
        fitting = PLATFORMS[description["platform"]].fitting(description["targets"])
        best = fitting[0]["name"] if fitting else None
        for target in description["targets"]:
            code = sum(len(archive.blocks[k["block"]]) for k in target["kernels"].values())
            here = " (what this machine runs)" if target["name"] == best else ""
            lines.append(f"target {target_line(target)}: {byte_size(code)} of code{here}")
            for kernel_id, kernel in target["kernels"].items():
                lines.append(f"  {_named(kernel_id, kernel)}")
                lines += [
                    f"    {line}" for line in (*kernel["nests"], *kernel.get("resources", ()))
                ]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ArchiveError(f"{path} is malformed: {type(error).__name__}: {error}") from error
    return "\n".join(lines)


def _often(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _platform(path: Path, archive: Archive) -> Platform:
    """What the file is for, which is here, as are the versions that it needs."""
    description = archive.description
    if description["format"] != FORMAT:
        raise ArchiveError(
            f"{path} has format {description['format']}, this version of hlo_mlc "
            f"reads format {FORMAT}: export it again"
        )
    if description["platform"] not in PLATFORMS:
        raise ArchiveError(
            f"{path} is for {description['platform']}, not for one of {', '.join(PLATFORMS)}"
        )
    if description["abi"] != library.ABI_VERSION:
        raise ArchiveError(
            f"{path} has kernels for runtime version {description['abi']}, this one "
            f"is {library.ABI_VERSION}: export it again"
        )
    platform = PLATFORMS[description["platform"]]
    missing = platform.missing(description["targets"])
    if missing:
        raise ArchiveError(f"{path} {missing}")
    return platform


def _choose_entry(path: Path, archive: Archive, name: str | None) -> Mapping[str, Any]:
    entries = {one["name"]: one for one in archive.description["entries"]}
    if name is None and len(entries) == 1:
        return next(iter(entries.values()))
    if name not in entries:
        asked = "say which" if name is None else f"there is no {name!r}"
        raise UsageError(
            f"{path} has the entries {', '.join(entries)}; {asked}: hlo_mlc.load(path, entry=…)"
        )
    return entries[name]


def _publish(
    path: Path, archive: Archive, chosen: Mapping[str, Any], platform: Platform
) -> Mapping[str, Any] | None:
    """Makes the entry's kernels callable, those for the target that it returns; None where there
    are none that run here."""
    targets = archive.description["targets"]
    target = next(iter(platform.fitting(targets)), None)
    if target is None and not chosen.get("open_sizes"):
        names = ", ".join(target["name"] for target in targets)
        warn(
            f"hlo_mlc: {path} has kernels for {names}, which this machine cannot run; "
            "XLA compiles the program instead"
        )
    if target is None:
        return None
    for kernel_id in chosen["kernels"]:
        kernel = target["kernels"][kernel_id]
        code = bytes(archive.blocks[kernel["block"]])
        if how := chosen.get("open_sizes"):
            open_sizes.supply_kernel(kernel_id, how, kernel, code)
        else:
            platform.publish(kernel_id, kernel, code)
    return target


def _leaf(leaf: Mapping[str, Any], block: bytes | memoryview) -> jax.Array:
    name = leaf["dtype"]
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    array = np.frombuffer(block, dtype).reshape(leaf["shape"])
    with jax.enable_x64(True):  # exactly the type that it had
        return jax.numpy.asarray(array)


def _deserialized(path: Path, block: bytes | memoryview) -> jax.export.Exported:
    try:
        return jax.export.deserialize(bytearray(block))
    except ImportError as error:
        raise ArchiveError(
            "Loading takes the package `flatbuffers`, which hlo-mlc is installed "
            "with: pip install flatbuffers"
        ) from error
    except Exception as error:  # whatever a reader of another version may raise
        raise ArchiveError(
            f"{path} holds a program that JAX {jax.__version__} cannot read: "
            f"{type(error).__name__}: {error}"
        ) from error


class LoadedFunction(JitObject[..., Any]):
    """What `load` returns: a function of JAX with its kernels, ready to be called.

    It runs under `jit`, under `vmap` (called for one element after the other) and, as often as it
    was exported for, under `grad`.
    """

    _report: LoadedReport

    def report(self) -> LoadedReport:
        """What of the function runs in kernels out of the file."""
        return self._report

    def explain(self) -> str:
        """The report in words."""
        return str(self._report)

    @property
    def __signature__(self) -> inspect.Signature:
        return self._report.parameters

    def __repr__(self) -> str:
        return f"<LoadedFunction {self._report.headline}>"


def _function(
    path: Path,
    chosen: Mapping[str, Any],
    exported: jax.export.Exported,
    leaves: list[jax.Array] | None,
    target: Mapping[str, Any] | None,
) -> LoadedFunction:
    name = chosen["name"]

    def refuse(_: jax.export.Exported) -> NoReturn:
        order = chosen["vjp_order"]
        can = f"can be differentiated {_often(order)} only" if order else "cannot be differentiated"
        raise UsageError(f"{name} of {path} {can}: export it with vjp_order={order + 1}")

    def loaded(*args: Any, **kwargs: Any) -> Any:
        inside = [kwargs.pop(_EMBEDDED)] if _EMBEDDED in kwargs else []
        check_call(name, exported, args, kwargs, embedded=len(inside))
        return program.call(*inside, *args, **kwargs)

    program = compat_exports.refusing_vjp(exported, refuse)
    compat_exports.map_calls_of_exported_functions()
    loaded.__name__ = loaded.__qualname__ = name
    loaded.__doc__ = chosen.get("documentation")
    how = chosen.get("open_sizes")
    jitted = open_sizes.jitted(loaded, how) if how else compat.jit(loaded)
    # Leaves are handed over at each call: XLA took twice as long to compile a program that contains
    # 27 MB.  By name, so that messages of JAX's count the arguments as the caller does.
    inside = {} if leaves is None else {_EMBEDDED: leaves}
    function = functools.update_wrapper(LoadedFunction(jitted, **inside), loaded, updated=())
    del function.__wrapped__
    function._report = LoadedReport(
        path,
        name,
        chosen["signature"],
        chosen["coverage"],
        _nests(chosen, target),
        target["name"] if target else None,
        how is not None,
        _parameters(exported, chosen.get("parameters", ()), embeds=leaves is not None),
    )
    return function


def _nests(chosen: Mapping[str, Any], target: Mapping[str, Any] | None) -> dict[str, list[str]]:
    """What each kernel that runs here computes."""
    if target is None:
        return {}
    kernels = {kernel_id: target["kernels"][kernel_id] for kernel_id in chosen["kernels"]}
    return {
        _named(kernel_id, kernel): list(kernel["nests"]) for kernel_id, kernel in kernels.items()
    }


def _named(kernel_id: str, kernel: Mapping[str, Any]) -> str:
    """What people call a kernel, and its id, which tells it from others of this name."""
    return f"{kernel['name']} ({kernel_id})"


def _parameters(
    exported: jax.export.Exported, names: Sequence[str], embeds: bool
) -> inspect.Signature:
    """What the function takes, by the names that its parameters had."""
    args, kwargs = exported.in_tree.children()
    avals = iter(exported.in_avals)
    kinds = inspect.Parameter
    positional, keywords = (
        [_described(one, [next(avals) for _ in range(one.num_leaves)]) for one in tree.children()]
        for tree in (args, kwargs)
    )
    positional = positional[1:] if embeds else positional
    if len(names) != len(positional):
        names = [f"arg{n}" for n in range(len(positional))]
    try:
        return inspect.Signature(
            [
                *(
                    kinds(name, kinds.POSITIONAL_ONLY, annotation=text)
                    for name, text in zip(names, positional, strict=True)
                ),
                *(
                    kinds(name, kinds.KEYWORD_ONLY, annotation=text)
                    for name, text in zip(kwargs.node_data()[1], keywords, strict=True)
                ),
            ]
        )
    except (TypeError, ValueError):  # keywords may be no identifiers
        return inspect.Signature(
            [kinds("args", kinds.VAR_POSITIONAL), kinds("kwargs", kinds.VAR_KEYWORD)]
        )


def _described(argument: jax.tree_util.PyTreeDef, leaves: Sequence[Any]) -> str:
    """The type of an argument, for a person."""
    if jax.tree_util.treedef_is_leaf(argument) and leaves:
        return str(leaves[0])
    container = argument.node_data()
    name = container[0].__name__ if container else "None"
    return f"{name} of {counted(len(leaves), 'array')}"
