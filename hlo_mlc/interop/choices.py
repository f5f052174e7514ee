"""What was found to be faster of a program, ours or XLA's, remembered on disk."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxlib.mlir import ir

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.interop import devices
from hlo_mlc.interop.extraction import MAIN
from hlo_mlc.interop.platforms import BACKENDS
from hlo_mlc.report import Comparison
from hlo_mlc.runtime.notes import read_note, write_note
from hlo_mlc.runtime.records import recorded_digests
from hlo_mlc.support.errors import CacheError
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import version

CANDIDATES = ("ours", "auto")
"""What is tried against XLA's own: all that we can compile, and what is predicted to be faster."""

_MOST_OF_A_LITERAL = 16  # elements, of a program that is to be known again


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run (`choose` is one of `CANDIDATES` or "xla"), what was measured, and remarks."""

    choose: str
    comparisons: tuple[Comparison, ...] = ()
    reasons: tuple[str, ...] = ()


def choice_path(original: str, options: Options, platform: str = "cpu") -> Path:
    """Where the choice for a program is remembered: by its text, for this machine and versions."""
    versions = [version(name) for name in ("hlo-mlc", "jaxlib")]
    device = devices.first_gpu() if platform == devices.CUDA else None
    machine = target_of(options) if device is None else device.device_kind
    identity = f"{machine}\n{versions}\n{original}"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return choices_folder(options) / f"{digest[:32]}.json"


def choices_folder(options: Options) -> Path:
    """Where choices are remembered, each as a note."""
    return options.cache_dir / "choices"


def settled_path(module: ir.Module, options: Options, entry: str) -> Path:
    """Where it is remembered what the calls of @entry have settled: known again by its operations,
    wherever they stand in the user's files, and without the values of its large constants."""
    text = module.operation.get_asm(large_elements_limit=_MOST_OF_A_LITERAL)
    return choice_path(f"settled\n{text.replace(f'@{entry}', f'@{MAIN}')}", options)


def recorded(
    kernels: Iterable[str], options: Options, platform: str = devices.CPU
) -> dict[str, str]:
    """What is recorded of each kernel now: a choice holds as long as it was made among these."""
    return recorded_digests(sorted(kernels), BACKENDS[platform](options).target.key, options)


def remembered(path: Path, options: Options, platform: str = devices.CPU) -> Choice | None:
    """The choice that was made; None where there is none, or where kernels were tuned since."""
    note = read_note(path)
    try:
        if note["kernels"] != recorded(note["kernels"], options, platform):
            return None
        comparisons = tuple(
            Comparison(
                str(c["candidate"]),
                float(c["ours_us"]),
                float(c["xla_us"]),
                float(c["speedup"]),
                str(c["against"]),
            )
            for c in note["comparisons"]
        )
        choice = Choice(note["choose"], comparisons, tuple(map(str, note["reasons"])))
    except (TypeError, KeyError, ValueError, CacheError):
        return None
    return choice if choice.choose in (*CANDIDATES, "xla") else None


def remember(path: Path, choice: Choice, kernels: Mapping[str, str]) -> None:
    write_note(path, {**dataclasses.asdict(choice), "kernels": kernels})
