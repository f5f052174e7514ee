"""How all tests are run."""

from __future__ import annotations

import os

import pytest


def test_there_is_a_worker_for_each_thread_of_a_core(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    psutil = pytest.importorskip("psutil")
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 64 if logical else 0.5)
    (count,) = {pytestconfig.hook.pytest_xdist_auto_num_workers(config=pytestconfig)}
    assert count == len(os.sched_getaffinity(0))
