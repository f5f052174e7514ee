"""The exceptions of hlo_mlc: one class per stage, all under `MlcError`.

A message says what was expected, what came, where, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(value: object, known: Iterable[str], prefix: str = "") -> str:
    """What to put behind the name of something that does not exist: the known one next to it, not
    counting a `prefix` that all of them have."""
    by_letters = {name.removeprefix(prefix).lower(): name for name in known}
    close = difflib.get_close_matches(str(value).removeprefix(prefix).lower(), by_letters, n=1)
    return f" (did you mean {by_letters[close[0]]!r}?)" if close else ""


class MlcError(Exception):
    """Base of every error that hlo_mlc raises on purpose.

    `location` is the line of the user's program that the error is about (`model.py:12`),
    `context` an excerpt of the IR around the fault; both are printed below the message.
    """

    def __init__(
        self, message: str, *, location: str | None = None, context: str | None = None
    ) -> None:
        super().__init__(message)
        self.location = location
        self.context = context

    def __str__(self) -> str:
        lines = [self._headline()]
        if self.location:
            lines.append(f"  at {self.location}")
        if self.context:
            lines += [f"  | {line}" for line in self.context.splitlines()]
        return "\n".join(lines)

    def _headline(self) -> str:
        return str(self.args[0])


class UsageError(MlcError, ValueError):
    """A caller passed an argument or option that does not exist or has no meaning."""


class ConfigurationError(MlcError):
    """An environment variable or a configuration file holds a value that cannot be used."""


class FrontendError(MlcError):
    """A StableHLO module is malformed or lacks the entry function that was asked for."""


class UnsupportedOpError(MlcError):
    """An operation has no meaning in this compiler, so it has to stay with XLA.

    `op` is its full name (`stablehlo.fft`), `reason` says what about it is not supported.
    """

    def __init__(
        self, op: str, reason: str, *, location: str | None = None, context: str | None = None
    ) -> None:
        super().__init__(op, location=location, context=context)
        self.args = (op, reason)  # what pickling hands back to __init__
        self.op = op
        self.reason = reason

    def _headline(self) -> str:
        return f"{self.op} is not supported: {self.reason}"


class CompilerFault(MlcError):
    """The compiler failed in a way that it has no other class for; the cause is chained."""


class PassError(MlcError):
    """A graph pass met a graph that breaks what the pass requires, or failed to keep a promise."""


class VerifyError(MlcError):
    """A verifier found an IR (graph, tensor expressions, loops) that breaks its own rules."""


class ScheduleError(MlcError):
    """A schedule primitive was refused because it would change the meaning or does not apply."""


class CodegenError(MlcError):
    """A kernel could not be turned into code, or the code generator behind us rejected it."""


class CodeLimitError(CodegenError):
    """A kernel would have more code than a program of its size may take time for."""

    def __init__(self, kernel: str, most_lines: int) -> None:
        super().__init__(f"Kernel {kernel} has more than {most_lines:,} lines of LLVM IR")


class KernelFaultError(MlcError):
    """A kernel that checks its accesses (`HLO_MLC_CHECK=1`) found one that is wrong."""


class RuntimeLibraryError(MlcError):
    """The native runtime library is missing, does not fit this package, or refused a request."""


class CacheError(MlcError):
    """The on-disk cache cannot be created, read or written where it was asked to be."""


class TuningError(MlcError):
    """A kernel cannot be tuned: there is nothing to compare candidates with."""


class ArchiveError(MlcError):
    """A file of exported functions is damaged, or is not for this machine or these versions."""


class UnknownTargetError(MlcError):
    """A target name does not stand for any device that code can be generated for."""
