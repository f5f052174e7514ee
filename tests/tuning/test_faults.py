"""Candidates that crash, hang or compute something else cost their trial and nothing more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import faulty
import pytest
from faulty import FaultyGenerator

from hlo_mlc.support.errors import TuningError
from hlo_mlc.tuning import supervisor as supervisor_module
from hlo_mlc.tuning import workers
from hlo_mlc.tuning.messages import Build, Built, Failed, Timed
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.supervisor import Supervisor
from hlo_mlc.tuning.tuner import Budget, tune_kernel
from hlo_mlc.tuning.workers import Worker

PATIENCE = 0.1  # two seconds


@pytest.fixture(params=[0, 2])
def helpers(request) -> Iterator[list[Worker]]:
    found = [Worker() for _ in range(request.param)]
    yield found
    for helper in found:
        helper.end()


@pytest.fixture
def tune(task, product, helpers: list[Worker], tmp_path: Path):
    def tune(generator: FaultyGenerator, **options):
        given = task(generator, **options)
        space = generator.space(product, given.target)
        study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)
        return tune_kernel(given, study, space, Budget(), patience=PATIENCE, helpers=helpers), study

    return tune


def test_the_faster_one_wins_among_faulty_ones(tune, nearly) -> None:
    kinds = (
        faulty.SLOW,
        faulty.FAST,
        faulty.CRASH,
        faulty.WRONG,
        faulty.UNTOUCHED,
        faulty.REFUSED,
        faulty.DIES,
    )
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


def interrupt(*_) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_while_the_worker_is_busy(task, product, tmp_path: Path, monkeypatch) -> None:
    """Its answer is not taken for one to the next question."""
    generator = FaultyGenerator((faulty.SLOW, faulty.FAST, faulty.REFUSED))
    space = generator.space(product, task().target)
    study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)
    interrupts: list[int] = []
    build = Supervisor.build

    def interrupted(self, requests):
        if len(study.tried) == 2 and not interrupts:
            with monkeypatch.context() as patch:
                patch.setattr(workers, "wait", interrupt)
                build(self, requests)
        return build(self, requests)

    monkeypatch.setattr(Supervisor, "build", interrupted)
    winner = tune_kernel(
        task(generator), study, space, Budget(), on_interrupt=lambda: interrupts.append(1)
    )
    assert winner.interrupted and interrupts == [1]
    assert winner.schedules == {0: (faulty.TEMPLATE, {"kind": faulty.FAST})}
    assert (winner.tried, winner.failed) == (2, 0)


def test_an_interrupt_before_anything_is_known(task, product, tmp_path: Path, monkeypatch) -> None:
    generator = FaultyGenerator((faulty.SLOW, faulty.FAST))
    space = generator.space(product, task().target)
    study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)

    monkeypatch.setattr(Supervisor, "build", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tune_kernel(task(generator), study, space, Budget())
    assert study.tried == []


def test_no_worker_outlives_the_tuner(task) -> None:
    with workers.helpers() as helpers:
        with Supervisor(task(), PATIENCE, helpers) as supervisor:
            process = supervisor._timing._process
            helping = [helper._process for helper in helpers]
            assert all(one.poll() is None for one in (process, *helping))
        assert process.poll() is not None
        assert all(one.poll() is None for one in helping), "for the next kernel"
    assert all(one.poll() is not None for one in helping)


def kind(number: int) -> Build:
    return Build({0: (faulty.TEMPLATE, {"kind": number})})


def test_answers_have_the_order_of_the_questions(task, helpers: list[Worker]) -> None:
    """Whoever is ready first; what crashes or hangs is lost, and what others were at is not."""
    kinds = (
        faulty.SLEEPS,
        faulty.FAST,
        faulty.DIES,
        faulty.SLOW,
        faulty.REFUSED,
        faulty.SAME,
        faulty.DIES,
        faulty.CRASH,
    )
    with Supervisor(task(FaultyGenerator(kinds)), PATIENCE, helpers) as supervisor:
        answers = supervisor.build(list(map(kind, kinds)))
        digests = [answer.digest for answer in answers if isinstance(answer, Built)]
        assert [type(answer) for answer in answers] == [
            Failed,
            Built,
            Failed,
            Built,
            Failed,
            Built,
            Failed,
            Built,
        ]
        assert digests[0] == digests[2] and len(set(digests)) == 3
        assert [answer.reason for answer in answers if isinstance(answer, Failed)] == [
            "it hung: no answer within 4 s",
            "it crashed: status 3",
            "refused",
            "it crashed: status 3",
        ]
        assert isinstance(supervisor.measure(answers[1], 0.01), Timed)
        assert isinstance(supervisor.measure(answers[7], 0.01), Failed)
        assert isinstance(supervisor.measure(answers[5], 0.01), Timed)


def test_helpers_go_on_with_the_next_kernel(task, product) -> None:
    with workers.helpers() as helpers:
        for number in range(2):
            generator = FaultyGenerator((faulty.SLOW, faulty.FAST)) if number else None
            with Supervisor(task(generator), PATIENCE, helpers) as supervisor:
                built = supervisor.build([Build({})] * 4)
            assert len({one.digest for one in built}) == 1
        assert [helper.starts for helper in helpers] == [1] * len(helpers)
    assert built[0].source == generator.source(product, task().target, {})


def test_a_helper_that_somebody_killed_is_replaced(task) -> None:
    helpers = [Worker()]
    try:
        with Supervisor(task(), PATIENCE, helpers) as supervisor:
            helpers[0]._process.kill()
            helpers[0]._process.wait()
            answers = supervisor.build([Build({})] * 4)
            assert sum(isinstance(answer, Failed) for answer in answers) == 1
            assert all(isinstance(one, Built) for one in supervisor.build([Build({})] * 4))
    finally:
        helpers[0].end()


def test_nothing_is_built_while_something_is_timed(
    task, product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = FaultyGenerator((faulty.SLOW, faulty.FAST, faulty.REFUSED, faulty.SAME))
    space = generator.space(product, task().target)
    study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)
    helpers, asked = [Worker(), Worker()], []
    ask_all = supervisor_module.ask_all

    def spy(asked_workers, requests, seconds):
        asked.append({type(request).__name__ for request in requests})
        if asked[-1] == {"Measure"}:
            assert len(asked_workers) == len(requests) == 1
            used = [_ticks(helper) for helper in helpers]
        answers = ask_all(asked_workers, requests, seconds)
        if asked[-1] == {"Measure"}:  # a tick may still be of the answer before
            assert all(
                _ticks(helper) <= before + 1 for helper, before in zip(helpers, used, strict=True)
            )
        return answers

    monkeypatch.setattr(supervisor_module, "ask_all", spy)
    try:
        winner = tune_kernel(task(generator), study, space, Budget(), helpers=helpers)
    finally:
        for helper in helpers:
            helper.end()
    assert winner.schedules == {0: (faulty.TEMPLATE, {"kind": faulty.FAST})}
    assert asked.count({"Measure"}) >= 3


def _ticks(worker: Worker) -> int:
    """The time that a worker's process has run.  Source: proc_pid_stat(5)."""
    stat = Path(f"/proc/{worker._process.pid}/stat").read_text()
    return sum(map(int, stat.rpartition(")")[2].split()[11:13]))


def test_what_is_built_when_the_time_is_up_is_tried_again(
    task, product, tmp_path: Path, monkeypatch
) -> None:
    generator = FaultyGenerator((faulty.SLOW, faulty.FAST, faulty.REFUSED))
    space = generator.space(product, task().target)
    study = KernelStudy(open_storage(tmp_path / "journal.log"), "faulty", space)
    helpers = [Worker(), Worker()]
    monkeypatch.setattr(Budget, "is_late", property(lambda self: len(study.tried) == 1))
    try:
        winner = tune_kernel(task(generator), study, space, Budget(), helpers=helpers)
        assert winner.tried == 1
        monkeypatch.undo()
        winner = tune_kernel(task(generator), study, space, Budget(), helpers=helpers)
    finally:
        for helper in helpers:
            helper.end()
    assert winner.tried == 3
    assert winner.schedules == {0: (faulty.TEMPLATE, {"kind": faulty.FAST})}
