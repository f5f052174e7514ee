"""A process that tunes in the background: `python -m hlo_mlc.interop.background_process NUMBER`.

It runs where nobody else wants to (background.py says so), and measures while nobody does. It may
be ended at any time: what was measured is in the studies, and the next one goes on from there.
"""

from __future__ import annotations

import fcntl
import functools
import sys
from multiprocessing.connection import Connection

import jax

from hlo_mlc.building import keeping
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.interop.background import Job, Tuned
from hlo_mlc.interop.tuning_session import Session
from hlo_mlc.runtime import library
from hlo_mlc.runtime.busyness import when_idle
from hlo_mlc.support.processes import end_with_parent
from hlo_mlc.tuning.progress import TuningProgress


def main(descriptor: int) -> None:
    """Does one job, and tells of each kernel."""
    end_with_parent()
    with Connection(descriptor) as connection:
        job: Job = connection.recv()
        module = connection.recv_bytes()
        with (
            open(job.options.cache_dir / ".background", "w") as lock,
            jax.enable_x64(job.x64),
            keeping(),
            TuningProgress() as progress,
        ):
            fcntl.flock(lock, fcntl.LOCK_EX)  # others would take it for a busy machine, and we them
            library.register_with_jax()
            session = Session(
                parse_module(module),
                job.entry,
                job.options,
                job.trials,
                None,
                None,
                functools.partial(when_idle, most=job.busy),
            )
            for kernel in session.kernels(progress, job.spent):
                connection.send(Tuned(kernel.id, kernel.reason))


if __name__ == "__main__":
    main(int(sys.argv[1]))
