"""What becomes of a fault of ours: a warning at the user's line, and a folder to see it again."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from jaxlib.mlir import ir

from hlo_mlc.interop.reproducer import keep
from hlo_mlc.support.faults import Contained, Fault
from hlo_mlc.support.options import Options
from hlo_mlc.support.warning import Line, is_internal, warn

_LOCATION = re.compile(r"(\S.*?):(\d+)(?: |$)")


@dataclass(frozen=True, slots=True)
class Subject:
    """A function that is being compiled: its name, and the line that it begins at, if known.

    `program` gives what is compiled: the module or, before there is one, a text.
    """

    name: str
    options: Options
    program: Callable[[], ir.Module | str]
    line: Line | None = None


class Faults:
    """The faults of ours that one function has met. Each is told once, if they are told at all."""

    def __init__(self, are_told: bool = True) -> None:
        self.are_told = are_told
        self._told: set[tuple[bool, str]] = set()

    def contained(self, subject: Subject, leave: Callable[[str], None]) -> Contained:
        """A context: what fails in it is told, and ends here; `leave` is given the reason why the
        function stays with XLA.

        Raises: ConfigurationError; MlcError for every fault, if the subject asks for ours only.
        """

        def note(fault: Fault) -> None:
            with contextlib.suppress(Exception):  # a report that cannot be kept has no reader
                leave(fault.reason)
            self.tell(fault, subject)

        def was_refused() -> bool:
            with contextlib.suppress(Exception):  # what failed before it is told
                if _is_invalid(subject.program()):
                    leave("it is no valid program")
                    return True
            return False

        return Contained(subject.options.choose, note, was_refused)

    def tell(self, fault: Fault, subject: Subject) -> None:
        """Warns of a fault at the line that it is about, unless that was done before."""
        kind = bool(fault.part), fault.reason  # of all kernels that it is about, the first is named
        if not self.are_told or kind in self._told:
            return
        self._told.add(kind)
        of = f"{fault.part} of {subject.name}" if fault.part else subject.name
        folder = keep(fault, subject.program, subject.options)
        kept = "" if folder is None else f" (what it takes to see it again is in {folder})"
        warn(
            f"hlo_mlc leaves {of} to XLA: {fault.reason}{kept}",
            _line(fault.location) or subject.line,
        )


def _is_invalid(program: ir.Module | str) -> bool:
    """Whether the user's program is wrong itself: JAX says so when all of it is lowered."""
    if isinstance(program, str):
        return False
    try:
        program.operation.verify()
    except ir.MLIRError:
        return True
    return False


def _line(location: str) -> Line | None:
    """The line of the user's that a location names."""
    found = _LOCATION.match(location)
    return None if found is None or is_internal(found[1]) else (found[1], int(found[2]))
