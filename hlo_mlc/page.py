"""What became of a function as one file for a browser: nothing in it is fetched from anywhere.

How it looks is in `report_page/`; what it shows is packed here, each kernel's texts for themselves,
so that a page opens without unpacking those that nobody looks at.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
import linecache
import re
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Template

from hlo_mlc.compiler import PLAN_FILE
from hlo_mlc.limits import MachineLimits
from hlo_mlc.report import KernelReport, Report
from hlo_mlc.support.dumps import file_name
from hlo_mlc.support.errors import CacheError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.versions import version
from hlo_mlc.support.wording import short_line
from hlo_mlc.target.cpu import CpuTarget, model_name

with lazy_imports():
    from hlo_mlc.tuning import history

_FOLDER = Path(__file__).parent / "report_page"
_STEPS = (
    ("40", "tensors.txt", "Tensors"),
    ("50", "schedule.txt", "Schedule"),
    ("60", "loops.txt", "Loops"),
    ("70", "proof.txt", "Proved"),
    ("80", "ll", "LLVM IR"),
    ("90", "s", "Assembly"),
)
_MODULE_FILES = (
    "00-stablehlo.mlir",
    "10-graph.txt",
    "20-simplified.txt",
    "30-plan.txt",
    "99-stablehlo.mlir",
)
_LONGEST = 200_000  # characters of a text: about 5,000 lines, more than a person reads
_MOST_TEXT = 1_200_000  # bytes of packed texts altogether: who mails a page likes it below 2 MB
_AROUND = 2  # lines of the user's that are shown before and after one that a kernel computes
_STAGE = re.compile(r"(?P<name>.+?) +(?P<ms>[\d.]+) ms(?P<same>  unchanged)?")

Json = dict[str, object]


def page_html(
    about: Json,
    report: Report,
    folder: Path,
    target: CpuTarget,
    limits: MachineLimits | None,
    journal: Path,
) -> str:
    """The page on a function, of which `about` says what `explain` knows, `folder` what was dumped
    while it was compiled, and `journal`, if there is one, what tuning tried."""
    dumps = _Dumps(folder)
    kernels, budget = [], _MOST_TEXT
    for kernel in _by_cost(about, report):
        texts = _packed(
            {
                title: text
                for number, suffix, title in _STEPS
                if (text := dumps.of_kernel(kernel, number, suffix))
            }
        )
        budget -= len(texts)
        kernels.append((kernel.id, texts if budget >= 0 else ""))
    module = _packed({file: text for file in _MODULE_FILES if (text := dumps.text(file))})
    data = {
        **about,
        "limits": None if limits is None else asdict(limits),
        "plan": dumps.plan({kernel.id for kernel in report.kernels}),
        "stages": dumps.stages(),
        "sources": _sources(report.kernels),
        "lines": _lines(report.kernels),
        "attempts": _attempts(journal, report.kernels),
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "machine": model_name(),
        "cores": target.cores,
        "target": target.name,
        "versions": {name: version(name) for name in ("jax", "jaxlib", "llvmlite")},
    }
    blobs = "\n".join(
        f'<script type="text/plain" data-id="{html.escape(key)}">{text}</script>'
        for key, text in (("data", _packed(data)), ("module", module), *kernels)
    )
    parts = {name: (_FOLDER / f"page.{name}").read_text("utf-8") for name in ("html", "css", "js")}
    title = html.escape(str(about["function"]))
    return Template(parts["html"]).substitute(
        title=title, style=parts["css"], script=parts["js"], blobs=blobs
    )


def _attempts(journal: Path, kernels: Sequence[KernelReport]) -> Json:
    """What tuning tried of each kernel, by its id."""
    if not journal.exists() or not kernels:
        return {}
    with contextlib.suppress(CacheError):  # it is another's to repair
        found = history.attempts(journal, [kernel.id for kernel in kernels])
        return {
            kernel_id: [[one.number, round(one.speedup, 4), one.what] for one in tried]
            for kernel_id, tried in found.items()
        }
    return {}


def _by_cost(about: Json, report: Report) -> list[KernelReport]:
    """The kernels, those that take longest first: if some have to go without texts, the others."""
    known = about["kernels"]
    assert isinstance(known, list)
    order = {kernel["id"]: place for place, kernel in enumerate(known)}
    return sorted(report.kernels, key=lambda kernel: order[kernel.id])


def _packed(content: object) -> str:
    """What a page unpacks by itself."""
    text = json.dumps(content, separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(text, 9)).decode()


class _Dumps:
    """The files of a dump, which has a folder for each time that something was compiled: those of
    the last one that has a plan, and of kernels whichever has them."""

    def __init__(self, folder: Path) -> None:
        self._folders = sorted(path for path in folder.iterdir() if path.is_dir())[::-1]
        self._main = next((path for path in self._folders if (path / PLAN_FILE).exists()), folder)

    def text(self, file: str) -> str:
        """What a file of the whole program holds; "" if there is none."""
        return _shown(_read(self._main / file))

    def plan(self, kernels: Collection[str]) -> Json | None:
        """The plan, if there is one. A unit that was to be a kernel and is none of these, as where
        XLA turned out to be faster, is the last of its operations, of XLA's."""
        plan = json.loads(_read(self._main / PLAN_FILE) or "null")
        if plan is not None:
            last = {unit: op for op, _, _, unit, _ in plan["operations"]}
            for number, unit in enumerate(plan["units"]):
                if unit[0] and unit[0] not in kernels:
                    unit[:2] = "", last.get(number, "")
        return plan

    def of_kernel(self, kernel: KernelReport, number: str, suffix: str) -> str:
        """What a file of a kernel holds; "" if there is none."""
        name = f"{number}-{file_name(kernel.name)}.{suffix}"
        return next((_shown(text) for path in self._folders if (text := _read(path / name))), "")

    def stages(self) -> list[tuple[str, float, bool]]:
        """The stages, how many milliseconds they took, and whether they changed anything."""
        found = map(_STAGE.fullmatch, _read(self._main / "index.txt").splitlines())
        return [
            (stage["name"], float(stage["ms"]), stage["same"] is None)
            for stage in found
            if stage is not None
        ]


def _read(path: Path) -> str:
    return path.read_text("utf-8") if path.is_file() else ""


def _shown(text: str) -> str:
    """A text of a length that a page can show."""
    if len(text) <= _LONGEST:
        return text
    more = text.count("\n", _LONGEST)
    return f"{text[:_LONGEST]}\n… and {more:,} lines more: HLO_MLC_DUMP=folder has all of them\n"


def _places(kernel: KernelReport) -> Iterator[tuple[str, int]]:
    """The lines of the user's that a kernel computes, each with its file as it is found."""
    for location in kernel.locations:
        if short_line(location):
            file, _, number = location.split(" ")[0].rpartition(":")
            if number.isdecimal():
                yield file, int(number)


def _lines(kernels: Sequence[KernelReport]) -> dict[str, dict[str, list[int]]]:
    """The lines that each kernel computes, by file."""
    found: dict[str, dict[str, list[int]]] = {}
    for kernel in kernels:
        for file, number in _places(kernel):
            numbers = found.setdefault(kernel.id, {}).setdefault(file, [])
            if number not in numbers:
                numbers.append(number)
    return found


def _sources(kernels: Iterable[KernelReport]) -> dict[str, Mapping[int, str]]:
    """The text of these lines and of those around them, by file and number."""
    wanted: dict[str, set[int]] = {}
    for kernel in kernels:
        for file, number in _places(kernel):
            wanted.setdefault(file, set()).update(range(number - _AROUND, number + _AROUND + 1))
    return {
        file: {
            number: line.rstrip()
            for number in sorted(numbers)
            if (line := linecache.getline(file, number))
        }
        for file, numbers in wanted.items()
    }
