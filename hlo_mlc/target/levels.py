"""Whether this machine can run code that was generated for a target, and as which it may plan."""

from __future__ import annotations

import functools
from dataclasses import replace

import llvmlite.binding as llvm

from hlo_mlc.support.errors import UnknownTargetError, did_you_mean
from hlo_mlc.target import cuda
from hlo_mlc.target.cpu import HOST, CpuTarget, host, named, names

THIS_MACHINE = "cpu"
"""What this machine is called where programs are compiled to run at once."""

# What each level adds to the one before, as LLVM calls it.
# Source: x86-64 psABI, "Micro-Architecture Levels".
_V2 = frozenset({"cx16", "sahf", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_OF_LEVEL = {"x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}


def architecture(target: CpuTarget) -> str:
    """The family of instruction sets: x86_64 or aarch64."""
    return target.triple.partition("-")[0]


def required_features(target: CpuTarget) -> frozenset[str]:
    """The features, in LLVM's names, that code for a target may use beyond its architecture's."""
    named = {name[1:] for name in target.features.split(",") if name.startswith("+")}
    return _OF_LEVEL.get(target.cpu, frozenset()) | named


@functools.cache
def present_features() -> frozenset[str]:
    """The features that this machine has."""
    return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)


def missing_features(target: CpuTarget) -> frozenset[str]:
    """What code for a target of this architecture may use and this machine lacks."""
    return required_features(target) - present_features()


def runnable() -> tuple[str, ...]:
    """What programs that run here can be compiled for: this machine, and levels that it has."""
    levels = (named(name) for name in names() if name != HOST)
    return (
        THIS_MACHINE,
        *(
            level.name
            for level in levels
            if architecture(level) == architecture(host()) and not missing_features(level)
        ),
    )


def planned_for(name: str) -> CpuTarget:
    """The CPU that programs which run here are planned for: this machine ("cpu"), or a level, whose
    instructions are used alone.

    A level is planned with the cores and the caches of this machine, which its code meets, and with
    typical rates (target/rates.py): what was measured here was measured with other instructions.

    Raises: UnknownTargetError for another name, and for a level that has more than this machine.
    """
    if name == THIS_MACHINE:
        return host()
    if name not in runnable():
        raise UnknownTargetError(
            f"Target {name!r}: {_why_not(name)}; expected one of {', '.join(runnable())}"
        )
    here = host()
    return replace(
        named(name),
        cores=here.cores,
        l1_bytes=here.l1_bytes,
        l2_bytes=here.l2_bytes,
        l3_bytes=here.l3_bytes,
    )


def _why_not(name: str) -> str:
    """Why programs that run here cannot be compiled for something."""
    if name in cuda.names():
        return "code for a GPU by name is what `hlo_mlc.export` makes, ahead of time"
    if name == HOST:
        return f"the machine that a program runs on is called {THIS_MACHINE!r}"
    if name not in names():
        return f"there is no such CPU{did_you_mean(name, runnable())}"
    level = named(name)
    if architecture(level) != architecture(host()):
        return f"it is an {architecture(level)} processor, and this machine is not"
    return f"this machine lacks {', '.join(sorted(missing_features(level)))}"
