"""A program without XLA as a file of C: its constants, its kernels, and the function that calls
them one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_mlc.codegen.c.dialect import C
from hlo_mlc.codegen.c.printer import print_file
from hlo_mlc.expr.core import Const
from hlo_mlc.expr.dtypes import BOOL, DType, from_numpy
from hlo_mlc.partition.memory import MemoryPlan, Place

# Subnormals are flushed to zero, as in XLA's programs (mlc_abi.h).
# Source: Intel SDM volume 1, 10.2.3 (MXCSR: FTZ and DAZ); Arm ARM, C5.2.8 (FPCR: FZ).
_MODE = """\
/* Tasks in their order, on the thread that calls. */
static void serial(MlcContext* context, void (*body)(void* closure, int64_t task), void* closure,
                   int64_t count) {
  (void)context;
  for (int64_t task = 0; task < count; ++task) body(closure, task);
}

/* Subnormal numbers count as zero while kernels run: the mode of before, and a mode to be set. */
#if defined(__SSE2__)
#include <xmmintrin.h>
static unsigned long long mode(void) { return _mm_getcsr(); }
static void set_mode(unsigned long long bits) { _mm_setcsr((unsigned)bits); }
static const unsigned long long flush = 0x8040;
#elif defined(__aarch64__)
static unsigned long long mode(void) {
  unsigned long long bits;
  __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
static void set_mode(unsigned long long bits) { __asm__ volatile("msr fpcr, %0" : : "r"(bits)); }
static const unsigned long long flush = 1 << 24;
#else
static unsigned long long mode(void) { return 0; }
static void set_mode(unsigned long long bits) { (void)bits; }
static const unsigned long long flush = 0;
#endif
"""
_COLUMNS = 100


def print_standalone(
    header: str, plan: MemoryPlan, kernels: Mapping[str, tuple[str, str]], prototype: str
) -> str:
    """The file that belongs to a header with the declaration `prototype`.

    kernels: by id, what the function of each is called, and its text.
    """
    used = {
        place.index
        for place in (
            *(b for i in plan.invocations for b in i.buffers),
            *(copy.source for copy in plan.copies),
        )
        if place.kind == "constant"
    }
    constants = [_constant(f"constant{n}", plan.constants[n]) for n in sorted(used)]
    lines = [
        "  MlcContext context = {serial, 1};",
        "  const unsigned long long usual = mode();",
        "  set_mode(usual | flush);",
    ]
    for invocation in plan.invocations:
        symbol, _ = kernels[invocation.kernel]
        buffers = ", ".join(f"(void*){_pointer(place)}" for place in invocation.buffers)
        scratch = _pointer(Place("workspace", invocation.scratch))
        lines += [f"  {symbol}(", f"      &context, (void*[]){{{buffers}}},", f"      {scratch});"]
    lines += [
        f"  memcpy({_pointer(copy.target)}, {_pointer(copy.source)}, {copy.bytes});"
        for copy in plan.copies
    ]
    lines += ["  set_mode(usual);", *([] if plan.invocations else ["  (void)context;"])]
    lines += [] if "workspace" in "".join(lines) else ["  (void)workspace;"]
    body = "\n".join(
        [
            *constants,
            *(text for _, text in kernels.values()),
            _MODE,
            f"{prototype} {{",
            *lines,
            "}",
            "",
        ]
    )
    return print_file(body, header)


def _pointer(place: Place) -> str:
    match place.kind:
        case "operand":
            return f"a{place.index}"
        case "result":
            return f"r{place.index}"
        case "constant":
            return f"constant{place.index}"
    return f"((char*)workspace + {place.index})"


def _constant(name: str, array: np.ndarray) -> str:
    """An array of numbers, as many a line as fit."""
    if array.dtype.kind == "c":
        array = np.stack((array.real, array.imag), -1)
    dtype = from_numpy(array.dtype)
    rows = [""]
    for text in _literals(array.reshape(-1), dtype) or ["0"]:
        if len(rows[-1]) + len(text) + 3 > _COLUMNS:
            rows.append("")
        rows[-1] += f" {text},"
    return (
        f"static const {C.element_type(dtype)} {name}[{max(1, array.size)}] = {{\n"
        + "\n".join(f" {row}" for row in rows)
        + "\n};\n"
    )


def _literals(values: np.ndarray, dtype: DType) -> Sequence[str]:
    if dtype.is_narrow_float:
        bits = values.view(f"u{dtype.bytes}")
        return [f"0x{b:0{2 * dtype.bytes}x}" for b in bits.tolist()]
    if dtype.is_float or dtype is BOOL or dtype.bits == 64:
        return [C.literal(Const(v, dtype)) for v in values.tolist()]
    return list(map(str, values.tolist()))
