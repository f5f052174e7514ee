"""Studies: what is known is kept, whatever ends the process that found it out."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from hlo_mlc.support.errors import CacheError
from hlo_mlc.tuning.messages import Failed, Timed
from hlo_mlc.tuning.space import Parameter, Space, TemplateChoice, key_of
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy

SMALL = Space((Parameter(0, "a", "x", (1, 2, 4), 2), Parameter(0, "a", "y", (0, 1), 0)))
LARGE = Space(tuple(Parameter(n, "a", "x", tuple(range(8)), 3) for n in range(4)))
TEMPLATES = Space(
    tuple(Parameter(n, t, "x", tuple(range(8)), 3) for n in range(3) for t in ("a", "b")),
    tuple(TemplateChoice(n, ("a", "b", "c")) for n in range(3)),
)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "studies" / "journal.log"


def run(study: KernelStudy, count: int, fails: int = -1) -> list[dict[str, int]]:
    """Tells so many trials that larger values are faster."""
    seen = []
    for _ in range(count):
        trial = study.next()
        if trial is None:
            break
        seen.append(dict(trial.configuration))
        total = sum(trial.configuration.values())
        outcome = Failed("wrong") if total == fails else Timed(10.0, 5.0, 1.0 + total / 10)
        study.tell(trial, outcome, f"code{sorted(trial.configuration.items())}")
    return seen


def test_small_spaces_are_gone_through(journal: Path) -> None:
    study = KernelStudy(open_storage(journal), "k", SMALL)
    seen = run(study, 100)
    assert seen[0] == SMALL.default
    assert sorted(map(key_of, seen)) == sorted(map(key_of, SMALL.all()))
    assert study.next() is None


def test_the_default_comes_first_then_the_known(journal: Path) -> None:
    known = dict.fromkeys(LARGE.default, 7)
    seen = run(KernelStudy(open_storage(journal), "k", LARGE, [known]), 3)
    assert seen[:2] == [LARGE.default, known]


def test_templates_are_chosen_first_then_their_parameters(journal: Path) -> None:
    study = KernelStudy(open_storage(journal), "k", TEMPLATES)
    seen = []
    for _ in range(50):
        trial = study.next()
        seen.append(dict(trial.configuration))
        active = {p.name for p in TEMPLATES.active(trial.configuration)}
        assert set(trial.configuration) == active | {c.name for c in TEMPLATES.choices}
        better = sum(
            {"a": 0, "b": 3, "c": 1}[trial.configuration[f"{n}.template"]]
            + trial.configuration.get(f"{n}.b.x", 0)
            for n in range(3)
        )
        study.tell(trial, Timed(10.0, 5.0, 1.0 + better / 10), f"code{len(seen)}")
    assert seen[:7] == list(TEMPLATES.starts)
    assert len({tuple(sorted(c.items())) for c in seen}) == 50
    last = [sum(c[f"{n}.template"] == "b" for n in range(3)) for c in seen[-15:]]
    assert sum(last) > 25, "the better template is learned"
    again = KernelStudy(open_storage(journal), "k", TEMPLATES)
    assert [t.configuration for t in again.tried] == seen


def test_no_configuration_is_tried_twice(journal: Path) -> None:
    seen = run(KernelStudy(open_storage(journal), "k", LARGE), 60)
    assert len({tuple(sorted(c.items())) for c in seen}) == 60


def test_the_sampler_learns(journal: Path) -> None:
    seen = run(KernelStudy(open_storage(journal), "k", LARGE), 80)
    totals = [sum(c.values()) for c in seen]
    assert sum(totals[-20:]) / 20 > sum(totals[:20]) / 20 + 4


def test_a_small_space_is_learned_as_points(journal: Path) -> None:
    """Of two templates, one of which is best in the middle of its values."""
    space = Space(
        (
            *(Parameter(0, "a", key, tuple(range(0, 32, 4)), 0) for key in "xy"),
            Parameter(0, "b", "x", tuple(range(8)), 3),
        ),
        (TemplateChoice(0, ("b", "a")),),
    )

    def log(c) -> float:
        if c["0.template"] == "b":
            return 0.0
        return 0.02 * (abs(c["0.a.x"] - 20) + abs(c["0.a.y"] - 12)) - 0.3

    def search(least_gain: float) -> list[float]:
        study = KernelStudy(optuna.storages.InMemoryStorage(), "k", space)
        found: list[float] = []
        while len(found) < 64 and (trials := study.batch(2, None, least_gain)):
            for trial in trials:
                found.append(log(trial.configuration))
                study.tell(trial, Timed(1.0, 1.0, math.exp(-found[-1])), "")
        return found

    together = KernelStudy(optuna.storages.InMemoryStorage(), "k", space).batch(8)
    assert len({key_of(trial.configuration) for trial in together}) == 8
    found = search(0.0)
    assert len(found) == 64 and min(found[:24]) == -0.3
    assert found == search(0.0), "the same again"
    shorter = search(0.005)
    assert 16 <= len(shorter) < 40 and min(shorter) == -0.3


def test_it_goes_on_where_it_was(journal: Path) -> None:
    first = KernelStudy(open_storage(journal), "k", SMALL)
    seen = run(first, 4, fails=1)
    second = KernelStudy(open_storage(journal), "k", SMALL)
    assert second.tried == first.tried
    assert [isinstance(t.outcome, Failed) for t in second.tried].count(True) == 1
    seen += run(second, 100)
    assert sorted(map(key_of, seen)) == sorted(map(key_of, SMALL.all()))
    assert second.known_code(first.tried[2].digest) == first.tried[2].outcome


def test_an_abandoned_trial_is_tried_again(journal: Path) -> None:
    first = KernelStudy(open_storage(journal), "k", SMALL)
    trial = first.next()
    first.abandon(trial)
    assert first.tried == []
    second = KernelStudy(open_storage(journal), "k", SMALL)
    assert second.next().configuration == trial.configuration


def test_other_spaces_are_other_studies(journal: Path) -> None:
    run(KernelStudy(open_storage(journal), "k", SMALL), 4)
    other = Space((Parameter(0, "a", "x", (1, 2), 2),))
    assert KernelStudy(open_storage(journal), "k", other).tried == []


@pytest.mark.filterwarnings("ignore:hlo_mlc studies")
def test_optuna_says_nothing_and_keeps_the_users_verbosity(journal: Path, capfd) -> None:
    optuna.logging.set_verbosity(optuna.logging.INFO)
    run(KernelStudy(open_storage(journal), "k", SMALL), 3)
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    assert capfd.readouterr().err == ""


ENDLESS = """
import sys, time
from pathlib import Path
from hlo_mlc.tuning.messages import Timed
from hlo_mlc.tuning.space import Parameter, Space
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
space = Space(tuple(Parameter(n, "a", "x", tuple(range(8)), 3) for n in range(4)))
study = KernelStudy(open_storage(Path(sys.argv[1])), "k", space)
while trial := study.next():
    print(len(study.tried), flush=True)
    study.tell(trial, Timed(10.0, 5.0, 2.0), "code")
"""


def test_killed_at_any_moment(journal: Path) -> None:
    known = 0
    for round in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(journal)], stdout=subprocess.PIPE, text=True
        )
        told = 0
        for line in process.stdout:
            told = int(line)
            if told >= known + 5 + round:
                break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        study = KernelStudy(open_storage(journal), "k", LARGE)
        assert len(study.tried) >= told > known
        known = len(study.tried)
    assert len(run(study, 3)) == 3


def test_a_full_disk(journal: Path) -> None:
    """What fits is kept, half a line is not, and it goes on when there is room."""
    study = KernelStudy(open_storage(journal), "k", SMALL)
    run(study, 3)
    size = journal.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, limits[1]))
    try:
        with pytest.raises(CacheError, match=r"cannot be written: .* make room"):
            study.next()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.stat().st_size == size
    again = KernelStudy(open_storage(journal), "k", SMALL)
    assert len(again.tried) == 3
    assert len(run(again, 100)) == SMALL.size - 3


def test_half_a_line_at_the_end(journal: Path) -> None:
    run(KernelStudy(open_storage(journal), "k", SMALL), 3)
    whole = journal.read_bytes()
    for cut in (1, 5, 30):
        journal.write_bytes(whole + whole.splitlines(keepends=True)[-1][:-cut])
        study = KernelStudy(open_storage(journal), "k", SMALL)
        assert len(study.tried) == 3
        assert len(run(study, 1)) == 1
        assert len(KernelStudy(open_storage(journal), "k", SMALL).tried) == 4


def test_damage_in_the_middle(journal: Path) -> None:
    run(KernelStudy(open_storage(journal), "k", SMALL), 3)
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[-2] = b"\x00" * 20 + b"\n"
    journal.write_bytes(b"".join(lines))
    with pytest.warns(RuntimeWarning, match="damaged in 1 lines"):
        study = KernelStudy(open_storage(journal), "k", SMALL)
    assert 2 <= len(study.tried) <= 3
    assert list(journal.parent.glob("*.damaged-1"))
    run(study, 100)
    assert KernelStudy(open_storage(journal), "k", SMALL).next() is None


def test_a_journal_that_makes_no_sense(journal: Path) -> None:
    run(KernelStudy(open_storage(journal), "k", SMALL), 3)
    journal.write_bytes(journal.read_bytes() + b'{"op_code": 99}\n')
    with pytest.warns(RuntimeWarning, match="studies begin anew"):
        study = KernelStudy(open_storage(journal), "k", SMALL)
    assert study.tried == []
    assert len(run(study, 2)) == 2
