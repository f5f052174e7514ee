"""What the documents say of where things are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/guide.md",
             "docs/internals.md")
# A folder, or a file of a kind that lies here, maybe with the name of something in it behind a
# colon; `<family>` and the like stand for any.
PLACE = re.compile(r"`((?:[\w.-]+/)*[\w.<>-]+(?:/|\.(?:py|cc|h|cuh|in|sh)))(?::\w+)?`")
FOLDERS = (ROOT, ROOT / "hlo_mlc", ROOT / "hlo_mlc" / "codegen")
FILES = {path.name for folder in ("hlo_mlc", "custom_calls", "scripts", "tests")
         for path in (ROOT / folder).rglob("*.*")}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_places_exist(name: str) -> None:
    places = PLACE.findall((ROOT / name).read_text())
    assert name == "README.md" or name.startswith("docs") or len(places) > 20
    missing = [place for place in places if "<" not in place and place not in FILES
               and not any((folder / place).exists() for folder in FOLDERS)]
    assert not missing, f"{name} names what is not there"
