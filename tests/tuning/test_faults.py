"""Candidates that crash, hang or compute something else cost their trial and nothing more."""

from __future__ import annotations

from pathlib import Path

import faulty
import pytest
from faulty import FaultyGenerator

from hlo_mlc.support.errors import TuningError
from hlo_mlc.tuning.messages import Failed, Timed
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.supervisor import Supervisor
from hlo_mlc.tuning.tuner import Budget, tune_kernel

PATIENCE = 0.1  # two seconds


@pytest.fixture
def tune(task, product, tmp_path: Path):
    def tune(generator: FaultyGenerator, **options):
        given = task(generator, **options)
        space = generator.space(product, given.target)
        study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)
        return tune_kernel(given, study, space, Budget(), patience=PATIENCE), study

    return tune


def test_the_faster_one_wins_among_faulty_ones(tune, nearly) -> None:
    kinds = (faulty.SLOW, faulty.FAST, faulty.CRASH, faulty.WRONG, faulty.UNTOUCHED,
             faulty.REFUSED, faulty.DIES)
    winner, study = tune(FaultyGenerator(kinds, nearly))
    assert winner.schedules == {0: (faulty.TEMPLATE, {"kind": faulty.FAST})}
    assert winner.measured.speedup > 1
    assert (winner.tried, winner.failed) == (7, 5)
    outcomes = {t.configuration["0.faulty.kind"]: t.outcome for t in study.tried}
    assert isinstance(outcomes[faulty.SLOW], Timed) and isinstance(outcomes[faulty.FAST], Timed)
    reasons = {kind: o.reason for kind, o in outcomes.items() if isinstance(o, Failed)}
    assert reasons.pop(faulty.CRASH) in ("it crashed: SIGSEGV", "it crashed: SIGILL")
    assert reasons == {
        faulty.WRONG: "9216 of 9216 elements of result 0 are wrong",
        faulty.UNTOUCHED: "9216 of 9216 elements of result 0 are wrong",
        faulty.REFUSED: "refused",
        faulty.DIES: "it crashed: status 3",
    }


@pytest.mark.parametrize("kind", [faulty.HANG, faulty.SLEEPS])
def test_one_that_hangs(tune, kind: int) -> None:
    winner, study = tune(FaultyGenerator((faulty.SLOW, faulty.FAST, kind)))
    assert winner.schedules == {0: (faulty.TEMPLATE, {"kind": faulty.FAST})}
    assert winner.failed == 1
    (reason,) = (t.outcome.reason for t in study.tried if isinstance(t.outcome, Failed))
    assert reason.startswith("it hung: no answer within ")


def test_no_winner_among_faulty_ones(tune) -> None:
    winner, _ = tune(FaultyGenerator((faulty.SLOW, faulty.UNTOUCHED)))
    assert winner.schedules == {} and winner.measured.speedup == 1.0


def test_a_default_that_is_wrong_is_no_baseline(tune) -> None:
    with pytest.raises(TuningError, match="default schedule is wrong: 100% of the elements"):
        tune(FaultyGenerator((faulty.SLOW, faulty.FAST)), offset=2.0)


def test_equal_code_is_measured_once(tune) -> None:
    _, study = tune(FaultyGenerator((faulty.SLOW, faulty.FAST, faulty.SAME)))
    by_kind = {t.configuration["0.faulty.kind"]: t for t in study.tried}
    assert by_kind[faulty.FAST].digest == by_kind[faulty.SAME].digest
    assert by_kind[faulty.FAST].outcome == by_kind[faulty.SAME].outcome


def test_an_interrupt_while_the_worker_is_busy(task, product, tmp_path: Path, monkeypatch) -> None:
    """Its answer is not taken for one to the next question."""
    generator = FaultyGenerator((faulty.SLOW, faulty.FAST, faulty.REFUSED))
    space = generator.space(product, task().target)
    study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)
    interrupts: list[int] = []
    build = Supervisor.build

    def interrupted(self, request):
        if len(study.tried) == 2 and not interrupts:
            self._connection.send(request)
            raise KeyboardInterrupt
        return build(self, request)

    monkeypatch.setattr(Supervisor, "build", interrupted)
    winner = tune_kernel(task(generator), study, space, Budget(),
                         on_interrupt=lambda: interrupts.append(1))
    assert winner.interrupted and interrupts == [1]
    assert winner.schedules == {0: (faulty.TEMPLATE, {"kind": faulty.FAST})}
    assert (winner.tried, winner.failed) == (2, 0)


def test_an_interrupt_before_anything_is_known(task, product, tmp_path: Path, monkeypatch) -> None:
    generator = FaultyGenerator((faulty.SLOW, faulty.FAST))
    space = generator.space(product, task().target)
    study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)

    def build(self, request) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Supervisor, "build", build)
    with pytest.raises(KeyboardInterrupt):
        tune_kernel(task(generator), study, space, Budget())
    assert study.tried == []


def test_no_worker_outlives_the_tuner(task) -> None:
    with Supervisor(task(), PATIENCE) as supervisor:
        process = supervisor._process
        assert process.poll() is None
    assert process.poll() is not None
