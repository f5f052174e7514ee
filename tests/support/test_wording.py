"""Places in files and times, in a word."""

from __future__ import annotations

from hlo_mlc.support.wording import duration, named_at, short_line, three_digits


def test_places_are_short() -> None:
    assert short_line("/home/me/my model.py:12 jit(f)/exp") == "my model.py:12"
    assert short_line("<ipython-input-3-832f4cfc3d85>:4 jit(f)/exp") == "In[3]:4"
    assert short_line("jit(f)/exp") == short_line("") == ""
    assert named_at("sort", "m.py:1") == "sort@m.py:1" and named_at("sort", "") == "sort"


def test_times_are_in_the_unit_that_suits_them() -> None:
    assert [duration(us) for us in (0.0, 5.44, 99.94, 99.96, 999.4)] == [
        "0.0 us",
        "5.4 us",
        "99.9 us",
        "100 us",
        "999 us",
    ]
    assert [duration(us) for us in (999.6, 2600, 9996, 99_960, 160_000)] == [
        "1.00 ms",
        "2.60 ms",
        "10.0 ms",
        "100 ms",
        "160 ms",
    ]
    assert [duration(us) for us in (999_600, 37.5e6, 1234e6)] == ["1.00 s", "37.5 s", "1234 s"]


def test_numbers_have_three_digits() -> None:
    values = (0.00747, 0.0971, 2.6, 14.0, 99.96, 115.5, 999.7, 12345.0)
    assert list(map(three_digits, values)) == [
        "0.00747",
        "0.0971",
        "2.60",
        "14.0",
        "100",
        "116",
        "1000",
        "12345",
    ]
