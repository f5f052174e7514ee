"""What a file of C begins with: what it asks of compilers, and the functions that kernels need, out
of prelude.h."""

from __future__ import annotations

import functools
import re
from pathlib import Path

# Results must not depend on how compilers are told to handle floats.
HEAD = """\
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "floats are meant as they are written: compile without -ffast-math, on x86 with SSE2"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
#pragma GCC diagnostic ignored "-Wtype-limits"  /* unsigned numbers may be compared with 0 */

"""
CONTEXT = """\
/* What runs the tasks of a kernel: parallel_for calls body(closure, 0 .. count-1), each once and in
 * any order, and returns when all are done. */
typedef struct MlcContext {
  void (*parallel_for)(struct MlcContext* context, void (*body)(void* closure, int64_t task),
                       void* closure, int64_t count);
  int64_t thread_count;
} MlcContext;

"""
_DEFINED = re.compile(r"^static inline .*?\b(mlc_\w+)\(", re.MULTILINE)
_NAME = re.compile(r"\bmlc_\w+")


@functools.cache
def _chunks() -> dict[str, str]:
    """The text of each function of the file, by its name, in its order."""
    text = (Path(__file__).parent / "prelude.h").read_text()
    pieces = [piece.strip() for piece in text.split("\n\n")[1:]]  # the first describes the file
    return {_DEFINED.search(piece)[1]: piece for piece in pieces}


def needed_by(code: str) -> str:
    """The definitions of all functions of the prelude that `code` uses, and that these use."""
    chunks = _chunks()
    used: set[str] = set()
    pending = set(_NAME.findall(code)) & chunks.keys()
    while pending:
        used |= pending
        inner = {name for known in pending for name in _NAME.findall(chunks[known])}
        pending = (inner & chunks.keys()) - used
    return "".join(f"{piece}\n\n" for name, piece in chunks.items() if name in used)
