"""Exporting: functions ahead of time into one file, with the machine code of their kernels.

The description of the file (runtime/archive.py) is

    platform: what the programs are for, cpu or cuda
    entries:  for each function its name, the blocks of its program and of the original that XLA
              can run alone, its signature, embedded leaves, the ids of its kernels; where sizes are
              open, how it is to be compiled for those of a call
    targets:  for each set of code what it is for, and for each kernel its block and how to call it

A kernel is shared by all entries that call it.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsIndex

import jax
import numpy as np
from jax.export import DisabledSafetyCheck

from hlo_mlc.building import keeping
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.frontend.walking import operations
from hlo_mlc.interop.bundle_writer import CpuTargets, GpuTargets
from hlo_mlc.interop.devices import CPU
from hlo_mlc.interop.jit import mlc_jit
from hlo_mlc.interop.jitted import MlcFunction
from hlo_mlc.interop.open_sizes import is_open, kernels_for_sizes
from hlo_mlc.report import Report
from hlo_mlc.runtime import library
from hlo_mlc.runtime.archive import FORMAT, Archive, write_archive
from hlo_mlc.runtime.files import writable
from hlo_mlc.support.errors import ArchiveError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import byte_size, counted
from hlo_mlc.target import Target, cpu, cuda


@dataclass(frozen=True, slots=True)
class Entry:
    """A function to export and the arguments, or their types, to export it for; see `entry`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    embed: tuple[int, ...] = ()
    vjp_order: int = 0


@dataclass(frozen=True, slots=True)
class ExportedEntry:
    """What became of one function."""

    name: str
    signature: str
    kernels: tuple[str, ...]
    report: Report = field(repr=False)


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What was written."""

    path: Path
    bytes: int
    entries: tuple[ExportedEntry, ...]
    targets: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.path}: {byte_size(self.bytes)}, code for {', '.join(self.targets)}"]
        for one in self.entries:
            lines.append(
                f"  {one.name}: {one.signature}; {one.report.coverage:.0%} of the "
                f"operations in {counted(len(one.kernels), 'kernel')}"
            )
            lines += [f"    {reason}" for reason in one.report.reasons]
        return "\n".join(lines)


def entry(
    function: Callable[..., Any],
    *args: Any,
    embed: int | Sequence[int] = (),
    vjp_order: int = 0,
    **kwargs: Any,
) -> Entry:
    """A function to export together with others; the arguments are those of `export`.

    Raises: UsageError for positions, or an order of derivatives, that are none.
    """
    if not callable(function):
        raise UsageError(f"A function is exported, not {type(function).__name__}")
    if not isinstance(vjp_order, Integral) or vjp_order < 0:
        raise UsageError(f"vjp_order={vjp_order!r}: expected how often to differentiate, 0, 1, …")
    return Entry(function, args, kwargs, embedded_positions(embed, len(args)), vjp_order)


def export(
    function: Callable[..., Any] | Mapping[str, Entry],
    *args: Any,
    path: str | os.PathLike[str],
    targets: str | Sequence[str] = ("host",),
    embed: int | Sequence[int] = (),
    vjp_order: int = 0,
    **kwargs: Any,
) -> ExportReport:
    """Writes a function, compiled, into a file that `hlo_mlc.load` runs without compiling kernels.

    `function` is what `mlc_jit` or `jax.jit` made or any function that JAX can trace, and the other
    arguments are what it is called with, or their types (`jax.ShapeDtypeStruct`, symbolic
    dimensions included: `load` compiles it for the sizes that it is called with then, with kernels
    for any number of rows, which are in the file). To put several functions into one file,
    give `{"name": hlo_mlc.entry(function, *args, **kwargs), …}`.

    `targets` are what to generate code for: "host" (this machine and such as have all that it has)
    and levels ("x86-64-v2", "x86-64-v3", "x86-64-v4"), or instead architectures of NVIDIA GPUs
    ("sm_80", "sm_90"), which need not be here; the best that fits is taken when the file is loaded.
    `embed` is the position of an argument whose value goes into the file (weights), or several,
    from the end if negative: what is loaded takes the others only. With `vjp_order=1` it can be
    differentiated once.

    Raises: UsageError for arguments that cannot be exported and for a path that cannot be written,
    UnknownTargetError for a target.
    """
    if isinstance(function, Mapping):
        if args or kwargs or embed not in ((), []) or vjp_order:
            raise UsageError(
                "Arguments of several functions are given with each: "
                "hlo_mlc.entry(function, *args, **kwargs)"
            )
        entries = dict(function)
        for name, one in entries.items():
            if not isinstance(one, Entry):
                raise UsageError(
                    f"What is exported as {name!r} is given as hlo_mlc.entry(function, *args), not "
                    f"as {type(one).__name__}"
                )
    else:
        name = getattr(function, "__name__", type(function).__name__)
        entries = {name: entry(function, *args, embed=embed, vjp_order=vjp_order, **kwargs)}
    if not isinstance(targets, Iterable):
        raise UsageError(f"targets={targets!r}: expected the name of a target, or several")
    if not entries or not targets:
        raise UsageError("There is nothing to export: it takes a function and a target")
    file = writable(path, "the export")  # shows before anything is compiled
    names = [targets] if isinstance(targets, str) else targets
    with keeping():
        return _Writer(targets_named(names)).write(file, entries)


def embedded_positions(embed: int | Sequence[int], count: int) -> tuple[int, ...]:
    """Which of `count` arguments `embed` means, in their order.

    Raises: UsageError for what are no positions of arguments.
    """
    given = list(embed) if isinstance(embed, Iterable) else [embed]
    if all(isinstance(p, SupportsIndex) and -count <= operator.index(p) < count for p in given):
        positions = sorted({operator.index(p) % count for p in given})
        if len(positions) == len(given):
            return tuple(positions)
    raise UsageError(
        f"embed={embed!r}: expected different positions of arguments, of which there are {count}"
    )


def targets_named(names: Sequence[str]) -> CpuTargets | GpuTargets:
    """What to generate code for.

    Raises: UnknownTargetError for a target, UsageError where CPUs and GPUs are mixed.
    """
    gpus = [name in cuda.names() for name in names]
    if any(gpus) and not all(gpus):
        raise UsageError(f"A file is for CPUs or for GPUs, not for both: {', '.join(names)}")
    if any(gpus):
        return GpuTargets(tuple(map(cuda.named, names)))
    return CpuTargets(tuple(map(cpu.named, names)))


class _Writer:
    """Collects the parts of a file."""

    def __init__(self, targets: CpuTargets | GpuTargets) -> None:
        self._targets = targets
        self._blocks: dict[str, bytes | memoryview] = {}
        self._kernels: dict[str, Options] = {}  # those of the function that calls it, by its id

    def write(self, path: Path, entries: Mapping[str, Entry]) -> ExportReport:
        described, reports = [], []
        for number, (name, given) in enumerate(entries.items()):
            description, report = self._entry(f"e{number}", name, given)
            described.append(description)
            reports.append(report)
        targets = [self._target(target) for target in self._targets.targets]
        description = {
            "format": FORMAT,
            "platform": self._targets.platform,
            "abi": library.ABI_VERSION,
            "versions": {"jax": jax.__version__},
            "entries": described,
            "targets": targets,
        }
        size = write_archive(path, Archive(description, self._blocks))
        return ExportReport(path, size, tuple(reports), tuple(t["name"] for t in targets))

    def _entry(self, prefix: str, name: str, given: Entry) -> tuple[dict[str, Any], ExportedEntry]:
        ours, original, args = _both_sides(given, self._targets.lowered_for)
        program = self._exported(ours, args, given.kwargs)
        report, options = ours.report(), ours.origin.options
        has_open_sizes = is_open(program) and self._targets.platform == CPU
        if has_open_sizes:
            found = kernels_for_sizes(program, options, given.vjp_order)
            report, kernels = found.report, found.ids
        else:
            kernels = _kernels_called(program, given.vjp_order)
        self._blocks[f"{prefix}.program"] = _serialized(program, given.vjp_order)
        has_original = kernels and not has_open_sizes
        if has_original:
            plain = self._exported(original, args, given.kwargs)
            self._blocks[f"{prefix}.original"] = _serialized(plain, given.vjp_order)
        self._kernels.update(dict.fromkeys(kernels, options))
        leaves = []
        for number, leaf in enumerate(args[0] if given.embed else ()):
            array = np.asarray(leaf)
            block = f"{prefix}.leaf{number}"
            self._blocks[block] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
            leaves.append({"block": block, "dtype": array.dtype.name, "shape": array.shape})
        signature = _signature(program, embedded=len(leaves))
        description = {
            "name": name,
            "program": f"{prefix}.program",
            "original": f"{prefix}.original" if has_original else f"{prefix}.program",
            "open_sizes": {"choose": options.choose, "deterministic": options.deterministic}
            if has_open_sizes
            else None,
            "signature": signature,
            "vjp_order": given.vjp_order,
            "embeds": bool(given.embed),
            "leaves": leaves,
            "kernels": list(kernels),
            "coverage": report.coverage,
            "parameters": _parameters(given),
            "documentation": _documentation(given),
        }
        return description, ExportedEntry(name, signature, tuple(kernels), report)

    def _target(self, target: Target) -> dict[str, Any]:
        kernels = {}
        for kernel_id, options in self._kernels.items():
            block = f"{target.name}.{kernel_id}"
            self._blocks[block], how = self._targets.code(kernel_id, target, options)
            kernels[kernel_id] = {"block": block, **how}
        return {"name": target.name, **self._targets.described(target), "kernels": kernels}

    def _exported(
        self, jitted: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> jax.export.Exported:
        """Raises: UsageError with the reason why JAX cannot export it."""
        allowed = [DisabledSafetyCheck.custom_call(KERNEL_TARGET)]
        try:
            return jax.export.export(
                jitted, platforms=[self._targets.platform], disabled_checks=allowed
            )(*args, **kwargs)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise UsageError(f"The function cannot be exported: {error}") from error


def _both_sides(given: Entry, target: str) -> tuple[Any, Any, tuple[Any, ...]]:
    """The function as we compile it for a target and as XLA does, and the arguments that both take:
    first the list of all embedded leaves, if any are."""
    ours = given.function if isinstance(given.function, MlcFunction) else mlc_jit(given.function)
    if not given.embed:
        return ours.for_archive(target), ours.choosing("xla"), given.args
    for place in given.embed:
        for leaf in jax.tree.leaves(given.args[place]):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                sizes = ",".join(map(str, leaf.shape))
                raise UsageError(
                    f"embed: argument {place} goes into the file by its value, and is "
                    f"a type here: {leaf.dtype}[{sizes}]. Commands take values from "
                    "the function's `example_args`"
                )
    leaves, tree = jax.tree.flatten([given.args[p] for p in given.embed])
    rest = tuple(arg for n, arg in enumerate(given.args) if n not in given.embed)

    def embedding(leaves: list[Any], *others: Any, **kwargs: Any) -> Any:
        values = dict(zip(given.embed, jax.tree.unflatten(tree, leaves), strict=True))
        remaining = iter(others)
        merged = [values[n] if n in values else next(remaining) for n in range(len(given.args))]
        return given.function(*merged, **kwargs)

    embedding.__name__ = getattr(given.function, "__name__", "function")
    wrapped = mlc_jit(embedding, choose=getattr(given.function, "choose", None))
    return wrapped.for_archive(target), wrapped.choosing("xla"), (leaves, *rest)


def _serialized(exported: jax.export.Exported, vjp_order: int) -> bytes:
    """Raises: UsageError for what cannot be written, such as types of containers that JAX knows
    only in this process; ArchiveError where the package is missing that writes it."""
    try:
        return bytes(exported.serialize(vjp_order=vjp_order))
    except ImportError as error:
        raise ArchiveError(
            "Exporting takes the package `flatbuffers`, which hlo-mlc is installed "
            "with: pip install flatbuffers"
        ) from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"The function cannot be exported: {error}") from error


def _kernels_called(exported: jax.export.Exported, vjp_order: int) -> tuple[str, ...]:
    """The ids of the kernels that a program and its derivatives call, in the order of calls."""
    ids = dict.fromkeys(_kernel_ids(exported))
    for _ in range(vjp_order):
        exported = exported.vjp()
        ids |= dict.fromkeys(_kernel_ids(exported))
    return tuple(ids)


def _kernel_ids(exported: jax.export.Exported) -> Iterator[str]:
    """The ids of the kernels that a program calls, in order of their first call."""
    module = parse_module(bytes(exported.mlir_module_serialized))
    calls = (call.attributes for call in operations(module, "stablehlo.custom_call"))
    ours = (call for call in calls if call["call_target_name"].value == KERNEL_TARGET)
    return iter(dict.fromkeys(call["backend_config"]["id"].value for call in ours))


def _parameters(given: Entry) -> list[str]:
    """The names of the positional arguments that the exported function takes; none where its
    signature does not say."""
    try:
        signature = inspect.signature(given.function)
        bound = signature.bind(*given.args, **given.kwargs)
    except (TypeError, ValueError):
        return []
    names = [
        name
        for name in bound.arguments
        if signature.parameters[name].kind
        in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [name for n, name in enumerate(names[: len(given.args)]) if n not in given.embed]


def _documentation(given: Entry) -> str | None:
    """The function's own documentation, not that of the kind of object that it is."""
    text = inspect.getdoc(given.function)
    return None if text == inspect.getdoc(type(given.function)) else text


def _signature(exported: jax.export.Exported, embedded: int) -> str:
    taken = [str(aval) for aval in itertools.islice(exported.in_avals, embedded, None)]
    return f"({', '.join(taken)}) -> ({', '.join(map(str, exported.out_avals))})"
