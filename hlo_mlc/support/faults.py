"""A fault of ours is never the user's: the only place that catches what fails in the compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.support.errors import CompilerFault, ConfigurationError, MlcError
from hlo_mlc.support.warning import MlcWarning

_OF_THE_USER = (ConfigurationError, MlcWarning)
_LONGEST = 500  # characters of what is said of an error


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """What failed: for which part of a function ("" is all of it) and, where that is known, which
    line of the user's ("model.py:12 jit(f)/sin")."""

    error: Exception
    part: str = ""
    location: str = ""

    @property
    def reason(self) -> str:
        """What to say of it, in a few lines: errors name expressions, however long they are."""
        what = f"the compiler failed with {type(self.error).__name__}: {self.error}"
        return what if len(what) <= _LONGEST else f"{what[:_LONGEST]} ..."


@dataclass(frozen=True, slots=True)
class Contained:
    """A context: what fails in it is handed to `note`, and ends here; the rest of it is left out.

    Interrupts pass, and so does what is the user's: settings that cannot be followed, warnings that
    were made errors. Where `was_refused` says that the user's program is wrong itself, there is no
    fault of ours: whoever refuses the program tells of it.

    Raises: what is the user's; MlcError for every fault, if `choose` is "ours".
    """

    choose: str
    note: Callable[[Fault], None]
    was_refused: Callable[[], bool] = lambda: False

    def __enter__(self) -> None:
        pass

    # No generator: its frames, which are the standard library's, would stand in tracebacks.
    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, Exception) or isinstance(error, _OF_THE_USER):
            return False
        if self.was_refused():
            return True
        if self.choose != "ours":
            self.note(Fault(error, location=getattr(error, "location", None) or ""))
            return True
        if isinstance(error, MlcError):
            return False
        raise CompilerFault(f"The compiler failed with {type(error).__name__}: {error}") from error
