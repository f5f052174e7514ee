"""docs/schedules.md is what the primitives say of themselves today."""

from __future__ import annotations

import runpy
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date() -> None:
    page = runpy.run_path(str(_ROOT / "scripts" / "schedules.py"))["page"]()
    assert page == (_ROOT / "docs" / "schedules.md").read_text(), "run python scripts/schedules.py"
