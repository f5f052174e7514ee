"""What the documents say of where things are."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import jax
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.cli.root import main

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/guide.md",
    "docs/internals.md",
    "docs/reference.md",
)
# A folder, or a file of a kind that lies here, maybe with the name of something in it behind a
# colon; `<family>` and the like stand for any.
PLACE = re.compile(r"`((?:[\w.-]+/)*[\w.<>-]+(?:/|\.(?:py|cc|h|cuh|in|sh)))(?::(\w+))?`")
FOLDERS = (ROOT, ROOT / "hlo_mlc", ROOT / "hlo_mlc" / "codegen")
SOURCES = (".py", ".cc", ".h", ".cuh")
FILES: dict[str, list[Path]] = {}
for _folder in ("hlo_mlc", "custom_calls", "scripts", "tests"):
    for _path in (ROOT / _folder).rglob("*.*"):
        FILES.setdefault(_path.name, []).append(_path)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_places_exist(name: str) -> None:
    places = PLACE.findall((ROOT / name).read_text())
    assert name == "README.md" or name.startswith("docs") or len(places) > 20
    missing = [
        f"{place}:{what}" if what else place
        for place, what in places
        if "<" not in place and not any(_has(path, what) for path in _found(place))
    ]
    assert not missing, f"{name} names what is not there"


def _found(place: str) -> list[Path]:
    """What a place may mean: from the root, from the package, or a file by its name alone."""
    paths = [folder / place for folder in FOLDERS if (folder / place).exists()]
    return paths or FILES.get(place, [])


def _has(path: Path, what: str) -> bool:
    return not what or re.search(rf"\b{what}\b", path.read_text()) is not None


# Names of code: of several words, or with capitals within.
NAME = re.compile(r"`((?:\w+\.)*(?:\w+_\w+|_\w+|[A-Z]\w*[a-z]\w*[A-Z]\w*))(?:\(.*?\))?`")


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/internals.md"])
def test_names_are_those_of_the_code(name: str) -> None:
    named = {part for found in NAME.findall((ROOT / name).read_text()) for part in found.split(".")}
    assert named
    sources = [path for paths in FILES.values() for path in paths if path.suffix in SOURCES]
    words = {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    assert named <= words, f"{name} names what is not there"


LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PAGES = (
    *DOCUMENTS,
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
)


@pytest.mark.parametrize("name", dict.fromkeys(PAGES))
def test_links_lead_somewhere(name: str) -> None:
    """To files, and to headings in them, by the names that GitHub gives these."""
    page = ROOT / name
    missing = []
    for file, heading in LINK.findall(page.read_text()):
        target = page.parent / file if file else page
        if not target.exists() or (heading and heading not in _anchors(target)):
            missing.append(f"{file}#{heading}")
    assert not missing, f"{name} links to what is not there"


def _anchors(page: Path) -> set[str]:
    return {
        re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower()
        for heading in HEADING.findall(page.read_text())
    }


REFERENCE = (ROOT / "docs" / "reference.md").read_text()


def test_the_reference_has_every_argument() -> None:
    ours = set(inspect.signature(mlc_jit).parameters) - set(inspect.signature(jax.jit).parameters)
    named = set(re.findall(r"^\| `(\w+)=", REFERENCE, re.MULTILINE))
    assert ours <= named, "an argument has no line"


def test_the_reference_has_every_command() -> None:
    named = set(re.findall(r"^\| `hlo-mlc (\w+)", REFERENCE, re.MULTILINE))
    assert named == set(main.list_commands(click.Context(main)))


def test_the_reference_has_every_variable() -> None:
    """But for those that processes of ours tell each other."""
    sources = "".join(path.read_text() for path in (ROOT / "hlo_mlc").rglob("*.py"))
    read = set(re.findall(r"\bHLO_MLC_[A-Z_]*[A-Z]\b", sources)) - {"HLO_MLC_PARENT"}
    named = set(re.findall(r"HLO_MLC_[A-Z_]*[A-Z]", REFERENCE))
    assert named == read


def test_the_readmes_example_runs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """As a file `model.py`, whose kernel then has the name that the README calls it by."""
    readme = (ROOT / "README.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, str(tmp_path / "model.py"), "exec"), names)
    assert "softmax: " in capsys.readouterr().out
    (kernel,) = names["softmax"].choosing("ours").report(names["x"]).kernels
    assert f'fn.schedule("{kernel.name}", *args)' in readme
