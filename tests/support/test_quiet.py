"""What stays out of the way of somebody who waits."""

from __future__ import annotations

import threading

import pytest

from hlo_mlc.support.quiet import Quiet


def test_it_comes_when_nobody_waits_any_longer() -> None:
    quiet, came = Quiet(), threading.Event()
    assert quiet.comes(60.0)  # nobody has waited yet

    def wait() -> None:
        assert quiet.comes(0.0)
        came.set()

    with quiet.disturbed(), quiet.disturbed():
        thread = threading.Thread(target=wait)
        thread.start()
        assert not came.wait(0.2)
    thread.join()
    assert came.is_set()


def test_it_does_not_come_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Quiet()
    monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    with quiet.disturbed():
        assert not quiet.comes(0.0)
    assert not quiet.comes(60.0)
    assert quiet.comes(0.0)
