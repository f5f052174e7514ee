"""A function compiled for the shapes that it is called with, each at the first such call.

The first have kernels of their own.  Those that come after are compiled with kernels that serve any
number of rows (partition/row_blocks.py), so that nothing is generated for them; where a program
recurs, it gets kernels of its own as well, while calls go on.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.interop.devices import ANY_ROWS, CPU
from hlo_mlc.interop.program import Execute, Shapes
from hlo_mlc.report import Report
from hlo_mlc.support.turns import short_turns

_RECURRING = 32
"""Calls after which a program is worth compiling once more: kernels for any number of rows take
1.0 to 1.5 times as long (scripts/rows.py)."""
_NICENESS = 10
_TURN_S = 5e-4  # for which our compiler keeps the interpreter from the callers


@dataclass(slots=True, eq=False)
class Compiled:
    """The function for one set of shapes, with kernels for a platform (interop/platforms.py)."""

    execute: Execute
    report: Report
    platform: str
    calls: int = 0


class ByShapes:
    """What a function was compiled to; `make` compiles it for shapes and a platform. Kernels are
    shared only where they `may_share`: results depend on what was called before, then."""

    def __init__(self, make: Callable[[Shapes, str], Compiled], may_share: bool) -> None:
        self._make = make
        self._may_share = may_share
        self._known: dict[Shapes, Compiled] = {}
        self._lock = threading.Lock()
        self.latest: Compiled | None = None

    def of(self, shapes: Shapes) -> Compiled:
        """The function for these shapes."""
        program = self._known.get(shapes)
        if program is None:
            with self._lock:
                program = self._known.get(shapes) or self._compiled(shapes)
                self._known[shapes] = self.latest = program
        return program

    def called(self, shapes: Shapes) -> Compiled:
        """The function for a call with arguments of these shapes."""
        program = self.of(shapes)
        if program.platform == ANY_ROWS and program.calls < _RECURRING:
            self._count(shapes, program)
        return program

    def reported(self, report: Report) -> tuple[Shapes, str] | None:
        """For which shapes and platform a report is; None if that was forgotten."""
        return next(((shapes, one.platform) for shapes, one in list(self._known.items())
                     if one.report is report), None)

    def clear(self) -> None:
        """Forgets all programs but the latest report."""
        with self._lock:
            self._known.clear()

    def _compiled(self, shapes: Shapes) -> Compiled:
        return self._make(shapes, ANY_ROWS if self._may_share and self._known else CPU)

    def _count(self, shapes: Shapes, program: Compiled) -> None:
        with self._lock:
            program.calls += 1
            recurs = program.calls == _RECURRING
        if recurs:
            threading.Thread(target=self._specialize, args=(shapes, program),
                             name="hlo_mlc specializes").start()

    def _specialize(self, shapes: Shapes, program: Compiled) -> None:
        """Has calls run kernels for these shapes alone; runs in a thread of its own."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        with contextlib.suppress(Exception), short_turns(_TURN_S):  # it is right as it is
            own = self._make(shapes, CPU)
            with self._lock:
                if self._known.get(shapes) is program:
                    self._known[shapes] = own
                if self.latest is program:
                    self.latest = own
