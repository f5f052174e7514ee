"""What forks wait for."""

from __future__ import annotations

import os
import threading

from hlo_mlc.support.locks import AwaitedByForks


def test_a_fork_waits_for_what_goes_on() -> None:
    work, done, ended = AwaitedByForks(), threading.Event(), []
    began = threading.Event()

    def run() -> None:
        with work:
            began.set()
            assert not done.wait(0.2)
            ended.append(True)

    worker = threading.Thread(target=run)
    worker.start()
    began.wait()
    child = os.fork()
    if child == 0:
        with work:  # is open, and all that was under way has ended
            os._exit(0 if ended else 1)
    done.set()
    worker.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with work, work:
        pass


def test_several_threads_are_in_it_at_once() -> None:
    work, together = AwaitedByForks(), threading.Barrier(3, timeout=60)

    def run() -> None:
        with work:
            together.wait()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not together.broken
