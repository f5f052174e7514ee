"""How tuning goes on, for a person who waits for it."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from hlo_mlc.tuning.messages import Failed, Outcome, Timed
from hlo_mlc.tuning.space import Space
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.tuner import Budget

_COLUMNS = ("{task.description:26}", "{task.fields[tried]:>5} tried",
            "{task.fields[failed]:>3} failed", "best {task.fields[best]:.2f}x",
            "{task.fields[limit]}")


class TuningProgress:
    """A bar on the terminal, if there is one, to be used as a context."""

    def __init__(self) -> None:
        self._console = console = Console(stderr=True)
        text = [TextColumn(column) for column in _COLUMNS]
        self._bar = Progress(text[0], BarColumn(), *text[1:], TimeElapsedColumn(),
                             console=console, disable=not console.is_terminal)
        self._task = TaskID(0)
        self._began = 0.0
        self._budget = Budget()
        self._size, self._least_us = 1, 0.0

    def __enter__(self) -> TuningProgress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._bar.stop()

    def begin(self, name: str, study: KernelStudy, space: Space, budget: Budget,
              least_us: float = 0.0) -> None:
        """A kernel comes next, of which something may be known: the machine cannot do it faster
        than in `least_us`, if that is known."""
        self._began, self._budget, self._size = time.monotonic(), budget, space.size
        self._least_us = least_us
        self._task = self._bar.add_task(name, total=1.0, tried=0, failed=0, best=1.0, limit="")
        self._show(study)

    def on_trial(self, study: KernelStudy, outcome: Outcome) -> None:
        """A configuration was tried."""
        self._show(study)

    def _show(self, study: KernelStudy) -> None:
        tried = study.tried
        timed = [t.outcome for t in tried if isinstance(t.outcome, Timed)]
        best = max(timed, key=lambda one: one.speedup, default=None)
        limit = f"{min(1.0, self._least_us / best.us):.0%} of the limit" \
            if best is not None and self._least_us else ""
        self._bar.update(
            self._task, completed=self._share(len(tried)), tried=len(tried), limit=limit,
            best=1.0 if best is None else best.speedup,
            failed=sum(isinstance(t.outcome, Failed) for t in tried))

    def on_interrupt(self) -> None:
        """The search is over before its time."""
        self._console.print("stopping: the winner so far is measured once more and recorded, which "
                            "takes some seconds (Ctrl-C again stops at once)", highlight=False)

    def end(self) -> None:
        """The kernel is done."""
        self._bar.update(self._task, completed=1.0)

    def _share(self, tried: int) -> float:
        """How much of the kernel's budget is spent."""
        most = min(self._size, self._budget.trials or self._size)
        if self._budget.deadline is None:
            return tried / most
        passed = time.monotonic() - self._began
        whole = max(self._budget.deadline - self._began, 1e-3)
        return max(tried / most, passed / whole)
