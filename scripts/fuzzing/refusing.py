"""Cuts inside of one compiled function: some of its clusters are left to XLA, by chance.

Printed at the head of a program of the mode `refused`: it needs hlo_mlc alone.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace

from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.plan import Chooser, Verdict


@contextlib.contextmanager
def refusing(seed: int) -> Iterator[None]:
    """While it lasts, every other cluster that would be taken is not, whatever chooses."""
    given = CpuBackend.chooser

    def chooser(*args: object) -> Chooser:
        rule = given(*args)

        def choose(cluster: Cluster) -> Verdict:
            verdict = rule(cluster)
            is_refused = zlib.crc32(f"{seed} {cluster.kernel.fingerprint}".encode()) % 2
            return replace(verdict, take=False, reason="by chance") if is_refused else verdict

        return choose

    CpuBackend.chooser = chooser
    try:
        yield
    finally:
        CpuBackend.chooser = given
