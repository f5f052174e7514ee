"""What all statements of a block of threads are written with."""

from __future__ import annotations

from hlo_mlc.codegen.clike import writer
from hlo_mlc.codegen.clike.values import Lines, Memory
from hlo_mlc.codegen.cuda.barriers import Barriers
from hlo_mlc.expr.core import Buffer


class Writer(writer.Writer):
    """The state of writing the function that a block of `threads` threads runs."""

    def __init__(self, memory: Memory, barriers: Barriers, threads: int) -> None:
        super().__init__(memory)
        self.barriers, self.threads = barriers, threads
        self.header = Lines()  # declarations at the start of the function
        # Shared memory that the threads of the nest at hand fill and do not look at.
        self.filled: frozenset[Buffer] = frozenset()
        self.copies = False  # whether any go on while threads do
