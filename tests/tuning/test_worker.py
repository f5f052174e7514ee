"""What a worker process does with a candidate, without a process around it."""

from __future__ import annotations

import pytest

from hlo_mlc.runtime.measure import PairedTimes
from hlo_mlc.tuning import worker
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
