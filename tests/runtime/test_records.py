"""Records: whole or absent, whoever writes, whatever happens to the files."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hlo_mlc.backends.recorded import unknown_names
from hlo_mlc.runtime.records import Measured, Merged, Record, Records, _to_json
from hlo_mlc.schedule.core import Step
from hlo_mlc.support.errors import CacheError
from hlo_mlc.target.cpu import host, named
from hlo_mlc.target.rates import Rates

SCHEDULES = {0: ("contraction", {"rows": 6, "pack": 1}), 3: ("elementwise", {"unroll": 2})}
RECORD = Record(
    "abc123",
    "cpu-2-f00",
    SCHEDULES,
    Measured(20.0, 10.0, 2.0, 15.0, 1.5),
    "ours",
    {"date": "2026-01-01T00:00:00+00:00"},
)


def faster(speedup: float, record: Record = RECORD) -> Record:
    measured = dataclasses.replace(record.measured, speedup=speedup)
    return dataclasses.replace(record, measured=measured)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "records")


def test_what_is_put_is_found(records: Records) -> None:
    assert records.get("abc123", "cpu-2-f00") is None
    assert records.put(RECORD) == RECORD
    assert Records(records.folder).get("abc123", "cpu-2-f00") == RECORD
    assert records.all() == [RECORD]
    assert records.get("abc123", "other") is None


def test_names_are_kept_with_them(records: Records) -> None:
    named = dataclasses.replace(RECORD, name="matmul+gelu@model.py:6")
    records.put(named)
    assert records.get("abc123", "cpu-2-f00") == named
    assert str(named).startswith("matmul+gelu@model.py:6  abc123  cpu-2-f00  ")


def test_a_person_can_read_it(records: Records) -> None:
    records.put(RECORD)
    content = json.loads((records.folder / "cpu-2-f00" / "abc123.json").read_text())
    assert content["schedules"]["0"] == {
        "template": "contraction",
        "parameters": {"rows": 6, "pack": 1},
    }
    assert str(RECORD) == (
        "unnamed  abc123  cpu-2-f00  10.0 us, default / this 2.00, XLA / this 1.50, ours  "
        "nest 0: contraction(rows=6, pack=1); nest 3: elementwise(unroll=2)"
    )


STEPS = (Step("split", ("i", 8)), Step("reorder", (("i.o", "i.i"),)))
BY_HAND = dataclasses.replace(RECORD, schedules={0: ("plain", STEPS), 1: ("scan", {"chunks": 2})})


def test_steps_of_a_person(records: Records) -> None:
    assert records.put(BY_HAND) == records.get("abc123", "cpu-2-f00") == BY_HAND
    assert str(BY_HAND).endswith(
        "  nest 0: by hand(split('i', 8); reorder(('i.o', 'i.i'))); nest 1: scan(chunks=2)"
    )
    content = json.loads((records.folder / "cpu-2-f00" / "abc123.json").read_text())
    assert content["schedules"]["0"] == {
        "template": "plain",
        "steps": [["split", "i", 8], ["reorder", ["i.o", "i.i"]]],
    }
    records.remove("abc123", "cpu-2-f00")
    assert records.all() == []


def test_what_a_person_did_gives_way_to_a_person_only(records: Records, tmp_path: Path) -> None:
    records.put(faster(9.0))
    assert records.put(BY_HAND) == BY_HAND
    assert records.put(faster(9.0)) == records.put(faster(9.0), replaces=BY_HAND) == BY_HAND
    assert records.put(faster(3.0, BY_HAND)) == faster(3.0, BY_HAND)
    elsewhere = Records(tmp_path / "elsewhere")
    elsewhere.put(faster(9.0))
    for one, other in ((records, elsewhere), (elsewhere, records)):
        one.import_text(other.export_text(), unknown_names)
    assert records.all() == elsewhere.all() == [faster(3.0, BY_HAND)]


def test_the_faster_one_stays(records: Records) -> None:
    records.put(RECORD)
    assert records.put(faster(1.5)) == RECORD
    assert records.put(faster(2.5)) == faster(2.5) == records.get("abc123", "cpu-2-f00")


def test_what_was_measured_again_gives_way(records: Records) -> None:
    records.put(RECORD)
    assert records.put(faster(1.1), replaces=RECORD) == faster(1.1)
    assert records.put(faster(1.05), replaces=RECORD) == faster(1.1), "another one came between"


@pytest.mark.filterwarnings("ignore:hlo_mlc records")
def test_any_damage_is_noticed(records: Records) -> None:
    records.put(RECORD)
    path = records.folder / "cpu-2-f00" / "abc123.json"
    content = path.read_bytes()
    damaged = [content[:size] for size in range(0, len(content) - 1, 7)]
    damaged += [
        content[:n] + bytes([content[n] ^ 1]) + content[n + 1 :] for n in range(len(content))
    ]
    noticed = 0
    for text in damaged:
        path.write_bytes(text)
        found = records.get("abc123", "cpu-2-f00")
        assert found in (None, RECORD)
        noticed += found is None
    assert noticed > len(damaged) - 20, "white space may change"


def test_damage_is_reported_and_made_good(records: Records) -> None:
    records.put(RECORD)
    path = records.folder / "cpu-2-f00" / "abc123.json"
    path.write_text(path.read_text().replace("20.0", "2.0"))
    with pytest.warns(RuntimeWarning, match="its digest does not match"):
        assert records.get("abc123", "cpu-2-f00") is None
    assert path.with_suffix(".damaged").exists() and not path.exists()
    assert records.get("abc123", "cpu-2-f00") is None, "silent, once reported"
    records.put(faster(1.1))
    assert records.all() == [faster(1.1)]


@pytest.mark.filterwarnings("ignore:hlo_mlc records")
def test_a_record_of_something_else_is_damage(records: Records) -> None:
    records.put(RECORD)
    folder = records.folder / "cpu-2-f00"
    (folder / "def.json").write_text((folder / "abc123.json").read_text())
    assert records.get("def", "cpu-2-f00") is None


def test_what_a_killed_writer_leaves_is_ignored(records: Records) -> None:
    records.put(RECORD)
    (records.folder / "cpu-2-f00" / ".writing-x").write_text("{")
    assert records.all() == [RECORD]


WRITER = """
import sys
from pathlib import Path
from hlo_mlc.runtime.records import Measured, Record, Records
records, me = Records(Path(sys.argv[1])), int(sys.argv[2])
for n in range(40):
    speedup = 1.0 + (n * 7 + me * 13) % 101 / 100
    for kernel in ("shared", f"own{me}"):
        records.put(Record(kernel, "t", {0: ("plain", {"n": n})}, Measured(1, 1, speedup)))
"""


def test_concurrent_writers_keep_the_fastest(records: Records) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-P", "-c", WRITER, str(records.folder), str(n)])
        for n in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    best = {n: max((k * 7 + n * 13) % 101 for k in range(40)) for n in range(3)}
    found = {r.kernel: round(100 * (r.measured.speedup - 1)) for r in records.all()}
    assert found == {"shared": max(best.values()), **{f"own{n}": best[n] for n in range(3)}}


def test_export_and_import(records: Records, tmp_path: Path) -> None:
    other = dataclasses.replace(RECORD, kernel="def456", schedules={}, choice="xla")
    records.put(RECORD)
    records.put(other)
    elsewhere = Records(tmp_path / "elsewhere")
    elsewhere.put(faster(3.0))
    merged = elsewhere.import_text(records.export_text(), unknown_names)
    assert merged == Merged(2, 1, 0, ()) and merged.slower == 1
    assert elsewhere.all() == [faster(3.0), other]
    assert elsewhere.import_text(elsewhere.export_text(), unknown_names).kept == 2


def test_templates_that_this_version_does_not_have(records: Records, tmp_path: Path) -> None:
    for kernel, template in (("abc123", "weaving"), ("def456", "elementwise")):
        records.put(
            dataclasses.replace(
                faster(9.0), kernel=kernel, schedules={0: (template, {"unroll": 2})}
            )
        )
    elsewhere = Records(tmp_path / "elsewhere")
    elsewhere.put(RECORD)
    assert elsewhere.import_text(records.export_text(), unknown_names) == Merged(
        2, 1, 1, ("weaving",)
    )
    assert elsewhere.get("abc123", "cpu-2-f00") == RECORD
    assert elsewhere.get("def456", "cpu-2-f00").measured.speedup == 9


def test_an_export_of_another_version(records: Records) -> None:
    text = records.export_text().replace("records 1", "records 2")
    with pytest.raises(CacheError, match=r"expected the format 'hlo_mlc records 1', got .* 2'"):
        records.import_text(text, unknown_names)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "hlo_mlc records 1"}',
        '{"format": "hlo_mlc records 1", "records": [{}]}',
        '{"format": "hlo_mlc records 1", "records": 3}',
    ],
)
def test_what_is_no_export(records: Records, text: str) -> None:
    with pytest.raises(CacheError, match="no exported records"):
        records.import_text(text, unknown_names)


def test_nothing_is_imported_of_a_damaged_export(records: Records, tmp_path: Path) -> None:
    records.put(RECORD)
    records.put(dataclasses.replace(RECORD, kernel="def456"))
    text = records.export_text()
    elsewhere = Records(tmp_path / "elsewhere")
    with pytest.raises(CacheError, match="digest"):
        elsewhere.import_text(text[::-1].replace("sruo", "alx", 1)[::-1], unknown_names)
    assert elsewhere.all() == []


def test_nothing_is_imported_with_a_name_that_leaves_the_folder(records: Records) -> None:
    good, bad = _to_json(RECORD), _to_json(dataclasses.replace(RECORD, kernel="../x"))
    with pytest.raises(CacheError, match="says what no record says"):
        records.import_text(
            json.dumps({"format": "hlo_mlc records 1", "records": [good, bad]}), unknown_names
        )
    assert records.all() == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    records = Records(tmp_path / "file")
    assert records.get("abc123", "t") is None
    with pytest.raises(CacheError, match="cannot be written"):
        records.put(RECORD)


def test_names_stay_in_the_folder(records: Records) -> None:
    with pytest.raises(CacheError):
        records.get("../../x", "t")


def test_targets() -> None:
    assert host().key == dataclasses.replace(host(), rates=Rates(start_us=9.0)).key
    keys = {
        t.key
        for t in (
            named("x86-64-v2"),
            named("x86-64-v3"),
            named("aarch64"),
            dataclasses.replace(named("x86-64-v3"), cores=64),
        )
    }
    assert len(keys) == 4
