"""What a worker process does with a candidate, without a process around it."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.runtime.measure import PairedTimes
from hlo_mlc.tuning import bench, worker
from hlo_mlc.tuning.bench import CpuBench
from hlo_mlc.tuning.messages import Begin, Build, Kernel, Measure, Ready, Timed


@pytest.mark.parametrize(("us", "looks"), [(160.0, [0.2]), (140.0, [0.2, 0.8]), (50.0, [0.2, 0.8])])
def test_what_is_much_slower_is_not_timed_for_long(
    us: float, looks: list[float], task, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, spent = task(), []
    candidates = worker._Candidates(Kernel(given.program, given.target, given.generator))
    assert isinstance(candidates.answer(Begin(given.operands, given.expected)), Ready)

    def time(self, a, b, seconds: float) -> PairedTimes:
        spent.append(seconds)
        return PairedTimes.of([100.0] * 3, [us] * 3)

    monkeypatch.setattr(CpuBench, "time", time)
    built = candidates.answer(Build({}))
    timed = candidates.answer(Measure(built.source, built.code, 2.0))
    assert timed == Timed(100.0, us, 100.0 / us, 1.0)
    assert spent == pytest.approx([2.0 * part for part in looks])


def test_known_code_is_not_assembled(task) -> None:
    given = task()
    candidates = worker._Candidates(Kernel(given.program, given.target, given.generator))
    built = candidates.answer(Build({}))
    again = candidates.answer(Build({}, frozenset([built.digest])))
    assert built.code and not again.code and again.source == built.source


def test_where_results_lie_says_nothing_of_a_kernel(task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side writes in one place as often as in the other."""
    given = task()
    bench_here = CpuBench(given.target, given.operands, given.expected)
    built = worker._Candidates(Kernel(given.program, given.target, given.generator)).answer(
        Build({})
    )
    default, other = (bench_here.load(built.source, built.code) for _ in range(2))
    worth = {default.run: 1.0, other.run: 1.0, default.run_elsewhere: 1.3, other.run_elsewhere: 1.3}

    def time_in_turns(a, b, seconds: float, fewest_rounds: int) -> PairedTimes:
        own = {default.run: 12.0, default.run_elsewhere: 12.0}
        return PairedTimes.of(*([worth[run] * own.get(run, 10.0)] * 3 for run in (a, b)))

    monkeypatch.setattr(bench, "time_in_turns", time_in_turns)
    times = bench_here.time(default, other, 1.0)
    assert times.speedup == pytest.approx(1.2) == pytest.approx(times.sure_speedup)
    assert times.a.median_us == pytest.approx(12.0 * 1.15)


def test_what_another_one_has_written_is_no_result(task) -> None:
    given = task()
    here = CpuBench(given.target, given.operands, given.expected)
    built = worker._Candidates(Kernel(given.program, given.target, given.generator)).answer(
        Build({})
    )
    one = here.load(built.source, built.code)
    one.run()
    computed = one.results()
    other = here.load(built.source, built.code)
    assert all((r.view(np.uint8) == bench.UNTOUCHED).all() for r in other.results())
    here.time(one, other, 0.01)
    assert all(map(np.array_equal, other.results(), computed))
