"""The dashboard: served on a free port, with a note on each study."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hlo_mlc.cli import main
from hlo_mlc.support.errors import UsageError
from hlo_mlc.tuning import dashboard
from hlo_mlc.tuning.dashboard import make_dashboard, note_text
from hlo_mlc.tuning.messages import Failed, Timed
from hlo_mlc.tuning.overview import overview_json
from hlo_mlc.tuning.space import Parameter, Space
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import OF_LIMIT, SHARE_OF, KernelStudy

SPACE = Space((Parameter(0, "elementwise", "unroll", (1, 2, 4), 2),))
KNOWN = {
    "kernel": "for i<512:\n  r0[i] = sin(a0[i])",
    "ops": "sine",
    "target": "cpu, 2 cores",
    "default": ["nest 0: elementwise(unroll=2)"],
    "best": ["nest 0: elementwise(unroll=4)"],
    "us": 10.0,
    "speedup over the default": 1.25,
    "speedup over XLA": 3.5,
    "choice": "ours",
    OF_LIMIT: 0.64,
    f"{SHARE_OF}predict": 0.27,
    f"{SHARE_OF}train": 0.1,
}
_START_S = 60


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "studies" / "journal.log"
    study = KernelStudy(open_storage(path), "abc-cpu", SPACE)
    study.describe(KNOWN)
    for number in range(3):
        outcome = Failed("it crashed: SIGSEGV") if number == 1 else Timed(9.0, 6.0, 1.5)
        study.tell(study.next(), outcome, "")
    return path


@pytest.fixture
def address(journal: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    monkeypatch.setattr(dashboard, "_REFRESH_S", 0.0)
    with make_dashboard(journal, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_START_S) as reply:
        return json.loads(reply.read())


def opened(url: str, folder: Path) -> subprocess.CompletedProcess:
    """A page as a browser has it, and a picture of it."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium (Debian's package of this name) to open the page with")
    ran = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder}/b",
            "--virtual-time-budget=15000",
            "--window-size=1400,1000",
            f"--screenshot={folder}/page.png",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def test_studies_and_notes(address: str, journal: Path) -> None:
    (summary,) = get(f"{address}/api/studies")["study_summaries"]
    assert summary["study_name"].startswith("abc-cpu-")
    detail = get(f"{address}/api/studies/{summary['study_id']}")
    assert [t["state"] for t in detail["trials"]] == ["Complete", "Pruned", "Complete"]
    assert detail["note"]["body"] == note_text(KNOWN)
    for part in (
        "sin(a0[i])",
        "10.0 us",
        "over the default: 1.25",
        "over XLA: 3.50 (our kernel",
        "`nest 0: elementwise(unroll=4)`",
        "cpu, 2 cores",
    ):
        assert part in detail["note"]["body"]
    again = get(f"{address}/api/studies/{summary['study_id']}")
    assert again["note"]["version"] == detail["note"]["version"], "not written again"
    KernelStudy(open_storage(journal), "abc-cpu", SPACE).describe({"speedup over XLA": 7.0})
    assert "over XLA: 7.00" in get(f"{address}/api/studies/{summary['study_id']}")["note"]["body"]


def test_the_overview(address: str) -> None:
    (row,) = get(f"{address}/overview.json")
    assert row["trials"] == [[0, 1.5], [1, 0.0], [2, 1.5]] and row["running"] == 0
    assert (row["over_default"], row["over_xla"], row["choice"]) == (1.25, 3.5, "ours")
    assert row["of_limit"] == 0.64 and row["shares"] == {"predict": 0.27, "train": 0.1}
    assert row["best"] == ["nest 0: elementwise(unroll=4)"]
    assert not row["is_default"] and row["last"]
    with urllib.request.urlopen(f"{address}/{row['study']}", timeout=_START_S) as reply:
        assert reply.status == 200
    with urllib.request.urlopen(address, timeout=_START_S) as reply:
        page = reply.read().decode()
    assert page.startswith("<!doctype html>") and "http://" not in page and "https://" not in page


def test_the_overview_without_studies(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "journal.log")
    assert overview_json(storage) == "[]"
    KernelStudy(storage, "abc-cpu", SPACE)
    (row,) = json.loads(overview_json(storage))
    assert row["name"].startswith("abc-cpu") and row["trials"] == [] and not row["recorded"]


@pytest.mark.filterwarnings("ignore:Target and region quantiles")
def test_the_overview_in_a_browser(address: str, tmp_path: Path) -> None:
    ran = opened(address, tmp_path)
    shown = ran.stdout.replace("\N{MULTIPLICATION SIGN}", "x")
    for part in (
        "1.25x faster",
        "3.50x faster",
        "64 %",
        "27 % of</span> <code>predict</code>",
        "10 % of</span> <code>train</code>",
        "our kernel",
        "nest 0: elementwise(unroll=4)",
        "the fastest trial had shown 1.50x",
        "1 failed",
        'href="dashboard/studies/0"',
        "<td><code>train</code></td>",
    ):
        assert part in shown


def test_on_a_full_disk_there_are_no_new_notes(address: str, journal: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size, limits[1]))
    try:
        (summary,) = get(f"{address}/api/studies")["study_summaries"]
        detail = get(f"{address}/api/studies/{summary['study_id']}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(detail["trials"]) == 3 and detail["note"]["body"] == ""


def test_a_note_that_a_person_wrote_stays(address: str) -> None:
    (summary,) = get(f"{address}/api/studies")["study_summaries"]
    url = f"{address}/api/studies/{summary['study_id']}"
    version = get(url)["note"]["version"]
    body = json.dumps({"body": "mine", "version": version + 1}).encode()
    request = urllib.request.Request(
        f"{url}/note", body, {"Content-Type": "application/json"}, method="PUT"
    )
    urllib.request.urlopen(request, timeout=_START_S).close()
    assert get(url)["note"]["body"] == "mine"
    assert get(url)["note"]["body"] == "mine"


@pytest.mark.filterwarnings("ignore:Target and region quantiles")
def test_the_page_in_a_browser(address: str, tmp_path: Path) -> None:
    ran = opened(f"{address}/dashboard/studies/0/note", tmp_path)
    for part in (
        "sin(a0[i])",
        "abc-cpu-",
        "speed-up over the default: 1.25",
        "speed-up over XLA: 3.50 (our kernel is taken)",
        "nest 0: elementwise(unroll=4)",
    ):
        assert part in ran.stdout
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_kernels_without_a_winner() -> None:
    assert "no winner yet" in note_text({"kernel": "x", "ops": "sine"})
    assert "no winner yet" in note_text({"kernel": "x", "best": "as an older version had it"})
    assert "a kernel" in note_text({})
    assert "over XLA: not measured" in note_text(KNOWN | {"speedup over XLA": 0.0})
    same = note_text(KNOWN | {"best": []})
    assert "- best schedule, the default:\n  - `nest 0: elementwise(unroll=2)`\n\n```" in same


def test_long_lines_are_wrapped() -> None:
    text = "  r0[i] = " + " + ".join(f"a0[i + {n}]" for n in range(40))
    lines = note_text(KNOWN | {"kernel": text}).split("```")[1].splitlines()[1:]
    assert max(map(len, lines)) <= 110 and len(lines) > 3
    assert "".join(line.strip() + " " for line in lines).strip() == text.strip()


def test_without_the_package(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with pytest.raises(UsageError, match=r"hlo-mlc\[dashboard\]"):
        make_dashboard(journal, "127.0.0.1", 0)


def test_a_port_that_is_taken(address: str, journal: Path) -> None:
    port = address.rpartition(":")[2]
    result = CliRunner().invoke(
        main, ["dashboard", "--port", port], env={"HLO_MLC_CACHE": str(journal.parents[1])}
    )
    assert result.exit_code == 2 and f"Cannot listen on 127.0.0.1:{port}" in result.output


def test_on_the_command_line(journal: Path) -> None:
    pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    # What a shell starts in the background ignores interrupts, and so do its children.
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from hlo_mlc.cli import main; main()"
    )
    command = [sys.executable, "-c", program, "dashboard", "--port", "0"]
    environment = os.environ | {"HLO_MLC_CACHE": str(journal.parents[1]), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            address = process.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            assert len(get(f"{address}api/studies")["study_summaries"]) == 1
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0
