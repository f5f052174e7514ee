"""Places in files, in a word."""

from __future__ import annotations

from hlo_mlc.support.wording import named_at, short_line


def test_places_are_short() -> None:
    assert short_line("/home/me/my model.py:12 jit(f)/exp") == "my model.py:12"
    assert short_line("<ipython-input-3-832f4cfc3d85>:4 jit(f)/exp") == "In[3]:4"
    assert short_line("jit(f)/exp") == short_line("") == ""
    assert named_at("sort", "m.py:1") == "sort@m.py:1" and named_at("sort", "") == "sort"
