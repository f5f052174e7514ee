"""The pictures of the documents, on a light page and on a dark one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hlo_mlc_bench import svg
from making.contrast import GRAPHICS, TEXT, contrast

PICTURES = sorted((Path(__file__).parents[2] / "docs").glob("*.svg"))
LIGHT = {colour: colour for colour in svg.DARK}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_every_colour_has_one_for_dark_pages(path: Path) -> None:
    """And the picture says which."""
    text = path.read_text()
    rules = re.findall(r'\[fill="(#\w+)"\]\{fill:(#\w+)\}', text)
    assert dict(rules) == svg.DARK and "prefers-color-scheme: dark" in text
    _, _, drawn = text.partition("</style>")
    used = set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawn)) - {"none"}
    assert {svg.PAPER, svg.FAINT} <= used <= set(svg.DARK)


@pytest.mark.parametrize("page", [LIGHT, svg.DARK], ids=["light", "dark"])
def test_it_can_be_read(page: dict[str, str]) -> None:
    paper = page[svg.PAPER]
    for words in (svg.INK, svg.FAINT):
        assert contrast(page[words], paper) >= TEXT
    for mark in (svg.OURS, svg.XLA):
        assert contrast(page[mark], paper) >= GRAPHICS
