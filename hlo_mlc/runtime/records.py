"""Records: the best known schedule of each kernel on each target, kept for the compiler.

A record says what a tuner found out: for each nest of a kernel the template and its parameters,
which are applied again by whatever generators there are when it is read, and whether our kernel or
XLA's code is the faster one; or which steps a person took from the naive loops. It is a small JSON
file of its own, so that writers of different kernels never meet, damage costs one kernel's tuning,
and a person can read it.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import functools
import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from hlo_mlc.runtime.files import write_whole
from hlo_mlc.support.errors import CacheError, ConfigurationError, UsageError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import version
from hlo_mlc.support.warning import warn

with lazy_imports():
    from hlo_mlc.schedule import core as schedule

if TYPE_CHECKING:
    from hlo_mlc.templates.base import Way

OURS, XLA = "ours", "xla"

_EXPORT_FORMAT = "hlo_mlc records 1"
_GPU = re.compile(r"sm_\d+-")
_NAME = re.compile(r"[A-Za-z0-9_.+-]{1,128}")

Schedules: TypeAlias = "Mapping[int, Way]"
"""For the position of a nest in its kernel: the template and the parameters that it was tuned to,
or the steps by which it was scheduled. Nests that are not named take what analysis says."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one call took when the schedule was found, in microseconds, and `speedup`: the time of
    the default schedule / that of this one, run in turns. XLA's side is 0 where it is unknown;
    `xla_ratio` is its time / ours, run in turns."""

    default_us: float
    ours_us: float
    speedup: float
    xla_us: float = 0.0
    xla_ratio: float = 0.0
    modelled: bool = False  # nothing was run: a model of a GPU that was not there says so

    def __str__(self) -> str:
        how = ", by a model" if self.modelled else ""
        return (
            f"{self.speedup:.2f} times as fast as the default schedule "
            f"({self.default_us:.1f} us, this one {self.ours_us:.1f} us{how})"
        )


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one kernel on one target.

    `choice` is "ours" or "xla" where measuring told one to be faster; else it is "", and predicted.
    """

    kernel: str  # its fingerprint
    target: str  # its key
    schedules: Schedules
    measured: Measured
    choice: str = ""
    made: Mapping[str, str] = field(default_factory=dict)  # date and versions
    name: str = ""  # what people called the kernel where it was tuned; earlier records have none

    @property
    def by_hand(self) -> bool:
        """Whether a person has scheduled something in it."""
        return any(isinstance(how, tuple) for _, how in self.schedules.values())

    @property
    def digest(self) -> str:
        """Equal for equal records."""
        return str(_to_json(self)["digest"])

    def __str__(self) -> str:
        best = self.measured
        facts = [f"{best.ours_us:.1f} us", *["modelled"] * best.modelled]
        facts += [f"default / this {best.speedup:.2f}"] if self.schedules else []
        facts += [f"XLA / this {best.xla_ratio:.2f}"] if best.xla_ratio else []
        facts += [self.choice] if self.choice else []
        return (
            f"{self.name or 'unnamed'}  {self.kernel}  {self.target}  {', '.join(facts)}  "
            f"{'; '.join(schedules_text(self.schedules)) or 'default'}"
        )


def schedule_text(way: Way) -> str:
    """`contraction(rows=6, pack=1)`, `by hand(split('i', 8); vectorize('i.i'))`."""
    template, how = way
    if isinstance(how, tuple):
        return f"by hand({'; '.join(map(str, how))})"
    return f"{template}({', '.join(f'{name}={value}' for name, value in how.items())})"


def schedules_text(schedules: Schedules) -> list[str]:
    """The same for each nest, its position in front."""
    return [f"nest {position}: {schedule_text(way)}" for position, way in sorted(schedules.items())]


@dataclass(frozen=True, slots=True)
class Merged:
    """Of so many imported records so many are kept, and so many name unknown templates, or
    primitives of schedules."""

    count: int
    kept: int
    unknown: int
    names: tuple[str, ...]  # of those that are unknown

    @property
    def slower(self) -> int:
        """How many are left out because there is a faster one, or one that a person has pinned."""
        return self.count - self.kept - self.unknown


class Records:
    """The records in a folder, which any number of threads and processes may share.

    A record appears whole or not at all, and is checked when it is read. A damaged one is reported,
    set aside under another name and counts as absent: tuning makes it again, from the study, which
    remembers its measurements.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """Where the records lie: a file `<target>/<kernel>.json` for each."""
        return self._folder

    def get(self, kernel: str, target: str) -> Record | None:
        """What is known of a kernel; None if nothing is, or only a damaged record."""
        path = self._path(kernel, target)
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _warn(f"cannot read {path} ({error.strerror or error}); going on without")
            return None
        try:
            record = _from_json(json.loads(text))
            if (record.kernel, record.target) != (kernel, target):
                raise ValueError("it is about another kernel or target")
        except ValueError as error:
            aside = path.with_suffix(".damaged")
            _warn(
                f"{path} is damaged ({error}); it is set aside as {aside.name}, and the kernel "
                "gets its default schedule until it is tuned again"
            )
            with contextlib.suppress(OSError):
                path.replace(aside)
            return None
        return record

    def put(self, record: Record, replaces: Record | None = None) -> Record:
        """Keeps a record unless a faster one is there; returns the one that is there then.

        `replaces` is a known record that was measured again and lost against this one: it gives
        way even if it once claimed more.  What was scheduled by hand gives way to nothing that a
        tuner found.

        Raises: CacheError when the folder cannot be written.
        """
        path = self._path(record.kernel, record.target)
        try:
            with self._locked(path.parent):
                there = self.get(record.kernel, record.target)
                if there is not None and (
                    there.by_hand > record.by_hand
                    or (there != replaces and _rank(there) >= _rank(record))
                ):
                    return there
                text = json.dumps(_to_json(record), indent=1, sort_keys=True) + "\n"
                write_whole(path, [text.encode()])
        except OSError as error:
            raise CacheError(
                f"The records in {self._folder} cannot be written: {error.strerror or error}"
            ) from error
        return record

    def remove(self, kernel: str, target: str) -> None:
        """Forgets what is known of a kernel."""
        self._path(kernel, target).unlink(missing_ok=True)

    def all(self) -> list[Record]:
        """Every record, by target and kernel."""
        found = (
            self.get(path.stem, path.parent.name) for path in sorted(self._folder.glob("*/*.json"))
        )
        return [record for record in found if record is not None]

    def export_text(self) -> str:
        """All records as one text, which `import_text` takes, here or elsewhere."""
        content = {"format": _EXPORT_FORMAT, "records": [_to_json(r) for r in self.all()]}
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    def import_text(self, text: str, unknown: Callable[[Schedules], set[str]]) -> Merged:
        """Merges exported records; the faster one of two stays, one by hand before others, and so
        does what is here where a record names templates or primitives that are `unknown`.

        Raises: CacheError, before anything is written, for a text that is not whole.
        """
        try:
            records = _exported(text)
        except ValueError as error:
            raise CacheError(
                f"These are no exported records, or damaged ones ({error}): export "
                "them again with this version"
            ) from error
        missing = [unknown(record.schedules) for record in records]
        kept = sum(
            self.put(record) == record
            for record, lacks in zip(records, missing, strict=True)
            if not lacks
        )
        return Merged(
            len(records), kept, sum(map(bool, missing)), tuple(sorted(set().union(*missing)))
        )

    def _path(self, kernel: str, target: str) -> Path:
        if not _NAME.fullmatch(kernel) or not _NAME.fullmatch(target):
            raise CacheError(f"There is no record of a kernel {kernel!r} on a target {target!r}")
        return self._folder / target / f"{kernel}.json"

    @contextlib.contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        """One writer at a time; the lock of a process that dies is released by the system."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def open_records(options: Options) -> Records:
    """The records that tuning writes with these options."""
    return Records(options.cache_dir / "records")


def require_say(options: Options, what: str) -> None:
    """Raises: UsageError where what tuning writes has no say in kernels, for who wants to `what` a
    function."""
    if options.deterministic:
        raise UsageError(
            "With deterministic=True (HLO_MLC_DETERMINISTIC=1) nothing that was tuned "
            f"is compiled: {what} the function without it"
        )
    if options.records:
        raise UsageError(
            f"With records={options.records} (HLO_MLC_RECORDS) kernels are built by "
            f"this file alone: {what} the function without it, and export that"
        )
    if options.choose == "xla":
        raise UsageError(
            'With choose="xla" (HLO_MLC_CHOOSE) no kernel of ours is run: '
            f"{what} the function without it"
        )


def find_record(kernel: str, target: str, options: Options) -> Record | None:
    """What a kernel is built by: a record of the file that the options pin, or of the cache folder.

    Raises: ConfigurationError for a file that cannot be followed.
    """
    if options.records is None:
        return open_records(options).get(kernel, target)
    return pinned_records(options.records).get((kernel, target))


def recorded_digests(kernels: Iterable[str], target: str, options: Options) -> dict[str, str]:
    """What is recorded of each kernel now, "" of those of which nothing is.

    Raises: ConfigurationError for a file that cannot be followed.
    """
    known = {kernel: find_record(kernel, target, options) for kernel in kernels}
    return {kernel: "" if record is None else record.digest for kernel, record in known.items()}


def pinned_records(path: Path) -> Mapping[tuple[str, str], Record]:
    """The records in a file of `hlo-mlc records export`, by kernel and target.

    Raises: ConfigurationError where it is missing or damaged.
    """
    return _pinned(path, _read_pinned(path))


def pin_of(options: Options) -> str:
    """What tells kernels that are built by a file from others in the process; "" for none.

    Raises: ConfigurationError for a file that is not there.
    """
    if options.records is None:
        return ""
    return hashlib.sha256(_read_pinned(options.records)).hexdigest()[:12]


def require_target(path: Path, target: str) -> None:
    """Raises: ConfigurationError where a pinned file has records for CPUs, or for GPUs, and none of
    them is for the target, which is one of these."""
    targets = {
        known
        for _, known in pinned_records(path)
        if bool(_GPU.match(known)) == bool(_GPU.match(target))
    }
    if targets and target not in targets:
        raise ConfigurationError(
            f"The records in {path} are for {', '.join(sorted(targets))}, and this is {target}: "
            "tune on a machine like this one, and export that"
        )


def _read_pinned(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"The records in {path} cannot be read: {error.strerror or error}"
        ) from error


def not_followed(path: Path, why: str) -> ConfigurationError:
    """What is raised of a pinned file that cannot be followed."""
    return ConfigurationError(
        f"The records in {path} cannot be followed ({why}): write them anew, with "
        "`hlo-mlc records export`"
    )


@functools.lru_cache(maxsize=8)
def _pinned(path: Path, content: bytes) -> Mapping[tuple[str, str], Record]:
    try:
        records = sorted(_exported(content.decode()), key=_rank)
    except ValueError as error:
        raise not_followed(path, str(error)) from error
    return {(record.kernel, record.target): record for record in records}


def today() -> dict[str, str]:
    """What a record says about where it comes from."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, **{name: version(name) for name in ("hlo-mlc", "jaxlib")}}


def _rank(record: Record) -> tuple[bool, bool, float, str, str]:
    """An order that every process agrees on: by hand, measured before modelled, the faster, the
    later, else by its text."""
    text = json.dumps(_to_json(record), sort_keys=True)
    measured = record.measured
    return (
        record.by_hand,
        not measured.modelled,
        measured.speedup,
        record.made.get("date", ""),
        text,
    )


def _exported(text: str) -> list[Record]:
    """Raises: ValueError for what is not exactly what `export_text` wrote."""
    content = json.loads(text)
    form = content.get("format") if isinstance(content, dict) else None
    if form != _EXPORT_FORMAT:
        raise ValueError(f"expected the format {_EXPORT_FORMAT!r}, got {form!r}")
    if not isinstance(content.get("records"), list):
        raise ValueError("it has no list of records")
    records = []
    for number, item in enumerate(content["records"]):
        try:
            records.append(_from_json(item))
        except ValueError as error:
            name = item.get("name") or item.get("kernel") if isinstance(item, dict) else None
            raise ValueError(f"record {number}, {name or 'unnamed'}: {error}") from error
    return records


def _to_json(record: Record) -> dict[str, Any]:
    content = {
        "kernel": record.kernel,
        "target": record.target,
        "schedules": {
            str(position): _way_to_json(way) for position, way in sorted(record.schedules.items())
        },
        "measured": {
            name: value
            for name, value in asdict(record.measured).items()
            if name != "modelled" or value
        },  # earlier versions read what was measured
        "choice": record.choice,
        "made": dict(record.made),
    } | ({"name": record.name} if record.name else {})
    return content | {"digest": _digest(content)}


def _from_json(content: Any) -> Record:
    """Raises: ValueError for what is not exactly what `_to_json` wrote."""
    try:
        rest = {name: value for name, value in content.items() if name != "digest"}
        if content["digest"] != _digest(rest):
            raise ValueError("its digest does not match")
        schedules = {
            int(position): _way_from_json(way) for position, way in content["schedules"].items()
        }
        measured = Measured(
            **{
                str(k): bool(v) if k == "modelled" else float(v)
                for k, v in content["measured"].items()
            }
        )
        record = Record(
            str(content["kernel"]),
            str(content["target"]),
            schedules,
            measured,
            str(content["choice"]),
            {str(k): str(v) for k, v in content["made"].items()},
            str(content.get("name", "")),
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"it is no record: {type(error).__name__}: {error}") from error
    names = all(map(_NAME.fullmatch, (record.kernel, record.target)))
    if record.choice not in ("", OURS, XLA) or not math.isfinite(measured.speedup) or not names:
        raise ValueError("it says what no record says")
    return record


def _way_to_json(way: Way) -> dict[str, Any]:
    template, how = way
    if isinstance(how, tuple):
        return {"template": template, "steps": [step.to_json() for step in how]}
    return {"template": template, "parameters": dict(how)}


def _way_from_json(content: Any) -> Way:
    template = str(content["template"])
    if "steps" in content:
        return template, tuple(map(schedule.Step.from_json, content["steps"]))
    return template, {str(k): int(v) for k, v in content["parameters"].items()}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _warn(message: str) -> None:
    warn(f"hlo_mlc records: {message}")
