"""Whether this machine can run code that was generated for a target."""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

from hlo_mlc.target.cpu import CpuTarget

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
