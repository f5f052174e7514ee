"""How tuning goes on, for a person who waits for it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TaskID, TextColumn
from rich.table import Table

from hlo_mlc.runtime.records import Measured
from hlo_mlc.tuning.messages import Outcome, Timed
from hlo_mlc.tuning.space import Space
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.tuner import Budget

# What stands behind the kernel and its bar, and how many columns that takes.
_HEADINGS = {"tried": 5, "best": 8, "default": 7, "XLA": 6, "limit": 5, "left": 6}
_FIELDS = tuple(map(str.lower, _HEADINGS))
_BAR, _LEAST = 8, 12  # and for a name there are so many


class _Table(Progress):
    """A bar for each kernel in a table whose columns have names."""

    def __init__(self, console: Console) -> None:
        self._width = console.width
        text = [TextColumn(f"{{task.fields[{name}]}}", justify="right") for name in _FIELDS]
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(_BAR),
            *text,
            console=console,
            disable=not console.is_terminal,
        )

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        taken = _BAR + 1 + sum(width + 1 for width in _HEADINGS.values())
        table.add_column(
            "kernel", no_wrap=True, overflow="ellipsis", max_width=max(self._width - taken, _LEAST)
        )
        table.add_column("", min_width=_BAR)
        for heading, width in _HEADINGS.items():
            table.add_column(heading, justify="right", no_wrap=True, min_width=width)
        for task in tasks:
            table.add_row(*(column(task) for column in self.columns if not isinstance(column, str)))
        return table


class TuningProgress:
    """A table on the terminal, if there is one, to be used as a context: of each kernel how long
    its fastest schedule takes, and the times of the default schedule and of XLA's code divided by
    that; `~` is predicted."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._bar = _Table(self._console)
        self._task = TaskID(0)
        self._began = 0.0
        self._budget = Budget()
        self._size, self._least_us, self._xla_us = 1, 0.0, 0.0
        self._known = 0  # configurations, before this kernel's turn came

    def __enter__(self) -> TuningProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(
        self,
        name: str,
        study: KernelStudy,
        space: Space,
        budget: Budget,
        least_us: float = 0.0,
        xla_us: float = 0.0,
    ) -> None:
        """A kernel comes next, of which something may be known: the machine cannot do it faster
        than in `least_us`, and XLA's code is predicted to take `xla_us`, where these are not 0."""
        self._began, self._budget, self._size = time.monotonic(), budget, space.size
        self._least_us, self._xla_us, self._known = least_us, xla_us, len(study.tried)
        self._task = self._bar.add_task(name, total=1.0, **dict.fromkeys(_FIELDS, ""))
        self._show(study)

    def on_trial(self, study: KernelStudy, outcome: Outcome) -> None:
        """A configuration was tried."""
        self._show(study)

    def on_interrupt(self) -> None:
        """The search is over before its time."""
        self._console.print(
            "stopping: the winner so far is measured once more and recorded, which "
            "takes some seconds (Ctrl-C again stops at once)",
            highlight=False,
        )

    def end(self, found: Measured) -> None:
        """The kernel is done, and this is what its winner has."""
        xla = f"{found.xla_ratio:.2f}x" if found.xla_ratio else ""
        self._bar.update(
            self._task,
            completed=1.0,
            best=_short(found.ours_us),
            xla=xla,
            default=f"{found.speedup:.2f}x",
            limit=self._limit(found.ours_us),
            left="done",
        )

    def _show(self, study: KernelStudy) -> None:
        tried = study.tried
        timed = [t.outcome for t in tried if isinstance(t.outcome, Timed)]
        best = max(timed, key=lambda one: one.speedup, default=None)
        shown = (
            {}
            if best is None
            else {
                "best": _short(best.us),
                "default": f"{best.speedup:.2f}x",
                "limit": self._limit(best.us),
                "xla": f"~{self._xla_us / best.us:.2f}x" if self._xla_us else "",
            }
        )
        self._bar.update(
            self._task,
            completed=self._share(len(tried)),
            tried=str(len(tried)),
            left=self._left(len(tried)),
            **shown,
        )

    def _limit(self, us: float) -> str:
        """What a time is of the machine's limit."""
        return f"{min(1.0, self._least_us / us):.0%}" if self._least_us else ""

    @property
    def _most(self) -> int:
        """How many configurations are tried at most."""
        return min(self._size, self._budget.trials or self._size)

    def _share(self, tried: int) -> float:
        """How much of the kernel's budget is spent."""
        if self._budget.deadline is None:
            return tried / self._most
        passed = time.monotonic() - self._began
        whole = max(self._budget.deadline - self._began, 1e-3)
        return max(tried / self._most, passed / whole)

    def _left(self, tried: int) -> str:
        """How long the kernel's search still takes at most; `<` where it may end before."""
        now, new = time.monotonic(), tried - self._known
        by_trials = (now - self._began) / new * (self._most - tried) if new > 0 else None
        by_clock = None if self._budget.deadline is None else self._budget.deadline - now
        known = [seconds for seconds in (by_trials, by_clock) if seconds is not None]
        if not known:
            return ""
        minutes, seconds = divmod(round(max(min(known), 0.0)), 60)
        may_end_before = self._budget.least_gain and (minutes or seconds)
        return f"{'<' if may_end_before else ''}{minutes}:{seconds:02}"


def _short(us: float) -> str:
    """A time in microseconds, or milliseconds where it is long."""
    return f"{us:.1f} us" if us < 1e3 else f"{us / 1e3:.2f} ms"
