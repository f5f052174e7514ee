"""Files that users name."""

from __future__ import annotations

import os
from pathlib import Path

from hlo_mlc.runtime.files import write_for_others


def test_a_pipe_is_written_into_and_stays(tmp_path: Path) -> None:
    """As /dev/stdout does; what is put in the place of /dev/null, everybody writes into."""
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for path in (pipe, link):
            write_for_others(path, b"content", "something")
            assert os.read(descriptor, 99) == b"content"
            assert path.is_fifo()
    finally:
        os.close(descriptor)
    assert sorted(tmp_path.iterdir()) == [link, pipe] and link.is_symlink()
