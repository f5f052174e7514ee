"""docs/schedules.md is what the primitives say of themselves today, and what it shows runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


def test_the_page_is_up_to_date() -> None:
    page = runpy.run_path(str(_ROOT / "scripts" / "schedules.py"))["page"]()
    assert page == (_ROOT / "docs" / "schedules.md").read_text(), "run python scripts/schedules.py"


def test_its_blocks_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """And print what is quoted below them, but for times."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HLO_MLC_CHOOSE", "ours")
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    page = (_ROOT / "docs" / "schedules.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", page, re.DOTALL)
    names: dict[str, object] = {}
    quoted = 0
    for number, (block, quote) in enumerate(blocks):
        exec(compile(block, f"schedules.md, block {number}", "exec"), names)
        shown = capsys.readouterr().out
        assert _timeless(quote) in _timeless(shown), block
        assert "explain" not in block or "scheduled by hand: 13 steps" in shown
        quoted += bool(quote)
    assert quoted == 4
    assert all(kernel.exact_known and not kernel.fault for kernel in names["checked"].kernels)


def _timeless(text: str) -> str:
    return re.sub(r"\d+\.\d+ (us|times)", r"… \1", " ".join(text.split()))
