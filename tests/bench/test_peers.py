"""What others compute is what the case computes, and what fails in one of them stays its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hlo_mlc_bench import peers
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.peer_programs import programs
from hlo_mlc_bench.peers import JAX, OURS, PEERS, Peer, PeerRow, compared, run_case

NUMPY = next(peer for peer in PEERS if peer.name == "NumPy")


def _tiny(case: Case) -> Case:
    return replace(case, sizes={**case.sizes, **case.tiny})


@pytest.mark.parametrize("case", compared(), ids=lambda case: case.name)
@pytest.mark.parametrize(
    "peer", [NUMPY, *(p for p in PEERS if p.packages == ("torch",))], ids=lambda peer: peer.name
)
def test_programs_of_others_are_right(case: Case, peer: Peer, compile_right: Any) -> None:
    if peer.version() is None:
        pytest.skip(f"{peer.name} is not installed")
    row = run_case(_tiny(case), compile_right, [peer], 1)
    written = programs(dict(case.sizes))[case.name]
    if (written.numpy if peer is NUMPY else written.torch) is None:
        assert row.failed == {peer.name: "no program for it"}
    else:
        assert row.failed == {}
        assert set(row.ms) == set(row.after_pause_ms) == {OURS, JAX, peer.name}


def test_every_program_is_for_a_case() -> None:
    assert {case.name for case in compared()} == set(programs({}))


def _doing(run: Callable[..., Any]) -> Peer:
    return Peer("other", ("numpy",), lambda case, function, args: lambda: run(*args))


def test_what_is_wrong_or_fails_is_told_and_not_timed(case: Case, compile_right: Any) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no such thing\nmore")

    row = run_case(case, compile_right, [_doing(lambda x: np.asarray(x) * 2)], 1)
    assert set(row.ms) == {OURS, JAX} and "error" in row.failed["other"]
    assert row.best is None and row.ratio is None
    row = run_case(case, compile_right, [_doing(fail)], 1)
    assert row.failed == {"other": "ValueError: no such thing"}
    right = run_case(case, compile_right, [_doing(lambda x: np.asarray(x) * 2 + 1)], 3)
    assert right.best == "other" and right.ratio > 0 and right.ratio_after_pause > 0


@pytest.mark.parametrize("endless", ["prepare", "run"])
def test_no_peer_is_waited_for_without_end(
    endless: str, case: Case, compile_right: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: Any) -> Callable[[], Any]:
        if endless == "prepare":
            time.sleep(100)
        return lambda: time.sleep(100)

    monkeypatch.setattr(peers, "PATIENCE_S", 3)
    handler = signal.getsignal(signal.SIGALRM)
    row = run_case(case, compile_right, [Peer("other", ("numpy",), prepare)], 1)
    assert row.failed == {"other": "not compiled after 3 s"} and set(row.ms) == {OURS, JAX}
    assert signal.getsignal(signal.SIGALRM) is handler


def test_ours_may_fail_too(case: Case) -> None:
    def compile_nothing(function: Callable) -> Callable:
        raise RuntimeError("planted")

    row = run_case(case, compile_nothing, [NUMPY], 1)
    assert row.failed[OURS] == "RuntimeError: planted"


def test_the_best_peer_is_neither_us_nor_jax() -> None:
    row = PeerRow(
        "case",
        {OURS: 2.0, JAX: 1.0, "one": 5.0, "other": 4.0},
        after_pause_ms={OURS: 4.0, JAX: 1.0, "one": 6.0, "other": 8.0},
    )
    assert row.best == "other" and row.ratio == 2.0 and row.ratio_after_pause == 1.5


def test_what_is_not_installed_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(NUMPY, packages=("numpy", "no-such-package"))
    monkeypatch.setattr(peers, "PEERS", (NUMPY, absent))
    assert list(peers.installed()) == [NUMPY]
    assert peers.installed()[NUMPY] == np.__version__
