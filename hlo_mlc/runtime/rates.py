"""The rates of this machine as `interop/calibration.py` measured them, on disk."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from pathlib import Path

from hlo_mlc.runtime.busyness import SHARE, share_in
from hlo_mlc.runtime.notes import read_note, write_note
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import version
from hlo_mlc.target.cpu import CpuTarget, model_name
from hlo_mlc.target.rates import Rates


def known_rates(cache_dir: Path, target: CpuTarget) -> Rates | None:
    """What was measured for this target on this machine, with these versions; None if nothing."""
    note = read_note(rates_path(cache_dir, target)) or {}
    try:
        rates = Rates(**{f.name: float(note[f.name]) for f in dataclasses.fields(Rates)})
    except (KeyError, TypeError, ValueError):
        return None
    return rates if rates.are_sane else None


def others_share(cache_dir: Path, target: CpuTarget) -> float:
    """The share of the CPUs' time that other programs had when these rates were measured."""
    return share_in(read_note(rates_path(cache_dir, target)))


def remember_rates(cache_dir: Path, target: CpuTarget, rates: Rates, share: float = 0.0) -> None:
    """Keeps what was measured while other programs had this share; only warns if it cannot."""
    note = {"cpu": model_name(), "cores": target.cores, SHARE: share, **dataclasses.asdict(rates)}
    write_note(rates_path(cache_dir, target), note)


def with_known_rates(target: CpuTarget, options: Options) -> CpuTarget:
    """The target with what was measured of it or is typical of its CPU, if the options want it."""
    if options.target != "cpu" or options.records or not options.calibrate:
        return target  # others are not measured here
    rates = known_rates(options.cache_dir, target) or Rates.typical(target.cpu)
    return dataclasses.replace(target, rates=rates)


def rates_path(cache_dir: Path, target: CpuTarget) -> Path:
    """Where the rates of this machine are remembered."""
    return cache_dir / f"rates-{_identity(target)}.json"


@functools.cache
def _identity(target: CpuTarget) -> str:
    """What the rates depend on: the machine, the cores that may be used, XLA's code and ours."""
    versions = [version(name) for name in ("hlo-mlc", "jaxlib")]
    return hashlib.sha256(f"{model_name()}\n{target}\n{versions}".encode()).hexdigest()[:12]
