"""What the host does to run a kernel: a sequence of launches of the functions of one source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a function over `blocks` blocks of `threads` threads, each block with
    `shared_bytes` of shared memory besides what the function declares.

    Its arguments are the addresses of `buffers` (positions among the program's operands and then
    its results), then the address of the scratch arena if it takes it, then `counters`: integers.
    """

    function: str
    blocks: int
    threads: int
    buffers: tuple[int, ...]
    takes_scratch: bool
    counters: tuple[int, ...] = ()
    shared_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CudaSource:
    """CUDA C++ of a whole program, and the launches that run it, in order."""

    text: str
    launches: tuple[Launch, ...]
    scratch_bytes: int

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the functions that are launched, each once."""
        return tuple(dict.fromkeys(launch.function for launch in self.launches))

    @property
    def plan(self) -> tuple[int, ...]:
        """The launches as numbers, for the custom call (custom_calls/mlc_abi.h)."""
        numbers = {name: n for n, name in enumerate(self.functions)}
        return tuple(
            word
            for each in self.launches
            for word in (
                numbers[each.function],
                each.blocks,
                each.threads,
                each.shared_bytes,
                len(each.buffers),
                *each.buffers,
                int(each.takes_scratch),
                len(each.counters),
                *each.counters,
            )
        )
