"""A function compiled for the shapes that it is called with, each at the first such call.

The first have kernels of their own.  Those that come after are compiled with kernels that serve any
number of rows (partition/row_blocks.py), so that nothing is generated for them: the first call has
all of these made, while calls go on, or before it returns where people ask for our kernels.  Where
a program recurs, it gets kernels of its own as well.  What is faster, they or XLA, is looked at
then.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hlo_mlc.interop.call_arguments import at_hand
from hlo_mlc.interop.devices import ANY_ROWS, CPU
from hlo_mlc.interop.meanwhile import begin, first_calls, meanwhile
from hlo_mlc.interop.program import Execute, Shapes
from hlo_mlc.interop.settling import other_side
from hlo_mlc.report import Report
from hlo_mlc.support.options import Options

_RECURRING = 32
"""Calls after which a program is worth compiling once more: kernels for any number of rows take
1.0 to 1.5 times as long (scripts/rows.py), and predictions may be wrong."""

PREPARING = "hlo_mlc prepares"
"""The name of threads that make kernels for other shapes."""


@dataclass(slots=True, eq=False)
class Compiled:
    """The function for one set of shapes, with kernels for a platform (interop/platforms.py)."""

    execute: Execute
    report: Report
    platform: str
    calls: int = 0


class ByShapes:
    """What a function was compiled to; `make` compiles it for shapes and a platform. Where there
    may be several shapes, `prepare` makes the kernels that others than the first will need, part by
    part. They are not shared where results are not to depend on what was called before."""

    def __init__(
        self,
        make: Callable[[Shapes, str, Options], Compiled],
        options: Options,
        prepare: Callable[[Shapes], Iterable[Report]] | None = None,
    ) -> None:
        self._make = make
        self._options = options
        self._prepare = None if options.deterministic else prepare
        self._known: dict[Shapes, Compiled] = {}
        self._prepared: list[Report] = []  # which keep the kernels
        self._lock = threading.Lock()
        self.latest: Compiled | None = None

    def of(self, shapes: Shapes) -> Compiled:
        """The function for these shapes."""
        program = self._known.get(shapes)
        if program is None:
            with first_calls.disturbed(), self._lock:
                program = self._known.get(shapes) or self._compiled(shapes)
                self._known[shapes] = self.latest = program
        return program

    def called(self, arrays: Sequence[Any]) -> Compiled:
        """The function for a call with these arguments."""
        shapes = tuple(tuple(array.shape) for array in arrays)
        program = self.of(shapes)
        if program.calls < _RECURRING:
            self._count(shapes, program, arrays)
        return program

    def reported(self, report: Report) -> tuple[Shapes, str] | None:
        """For which shapes and platform a report is; None if that was forgotten."""
        return next(
            (
                (shapes, one.platform)
                for shapes, one in list(self._known.items())
                if one.report is report
            ),
            None,
        )

    def clear(self) -> None:
        """Forgets all programs but the latest report."""
        with self._lock:
            self._known.clear()
            self._prepared.clear()

    def _compiled(self, shapes: Shapes) -> Compiled:
        if self._prepare is None:
            return self._make(shapes, CPU, self._options)
        if self._known:
            return self._make(shapes, ANY_ROWS, self._options)
        program = self._make(shapes, CPU, self._options)
        if self._options.choose == "ours":
            self._prepared = list(self._prepare(shapes))
        elif self._options.choose != "xla":
            begin(PREPARING, self._prepare_meanwhile, shapes)
        return program

    def _prepare_meanwhile(self, shapes: Shapes) -> None:
        """Makes what other shapes need; runs in a thread of its own. What fails here is made, and
        told if it fails again, by the call that needs it."""
        with contextlib.suppress(Exception), meanwhile() as it_is_time:
            for report in self._prepare(shapes) if it_is_time else ():
                self._prepared.append(report)
                if not threading.main_thread().is_alive():
                    break

    def _count(self, shapes: Shapes, program: Compiled, arrays: Sequence[Any]) -> None:
        with self._lock:
            program.calls += 1
            recurs = program.calls == _RECURRING
        measures = self._options.settles and other_side(program.report) is not None
        if recurs and (measures or program.platform == ANY_ROWS):
            options = self._options.replace(choose="measure") if measures else self._options
            given = [np.array(array) for array in arrays]  # who calls may write to theirs
            begin("hlo_mlc specializes", self._specialize, shapes, program, options, given)

    def _specialize(
        self, shapes: Shapes, program: Compiled, options: Options, given: Sequence[np.ndarray]
    ) -> None:
        """Has calls run what is best for these shapes alone; runs in a thread of its own."""
        # What fails changes nothing: the program is right as it is.
        with contextlib.suppress(Exception), meanwhile() as it_is_time, at_hand(given):
            if not it_is_time:
                return
            own = self._make(shapes, CPU, options)
            own.calls = _RECURRING
            with self._lock:
                if self._known.get(shapes) is program:
                    self._known[shapes] = own
                if self.latest is program:
                    self.latest = own
