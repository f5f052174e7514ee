"""MLIR locations -> one line for messages: the user's innermost frame and the op's name."""

from __future__ import annotations

from jaxlib.mlir import ir

# Where packages are installed: a line of theirs is not one that the user wrote.
_INSTALLED = ("/site-packages/", "/dist-packages/")

# An op's name ("jit(f)/sin") and the file:line of the frame; either may be empty.
_Place = tuple[str, str]


class LocationReader:
    """Reads locations of one module, each distinct one once."""

    def __init__(self) -> None:
        self._places: dict[ir.Attribute, _Place] = {}

    def read(self, location: ir.Location, around: str = "") -> str:
        """For example "model.py:12 jit(f)/sin"; empty for an unknown location.

        `around` is the line that leads to it, by the calls that it is inside of: where it names no
        line itself, as in functions that JAX keeps the traces of, that is its line.
        """
        name, frame = self._place(location)
        return f"{_nearer(frame, around)} {name}".strip()

    def line(self, location: ir.Location, around: str = "") -> str:
        """The line alone."""
        return _nearer(self._place(location)[1], around)

    def _place(self, location: ir.Location) -> _Place:
        key = location.attr
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = self._parse(location)
        return place

    def _parse(self, location: ir.Location) -> _Place:
        if isinstance(location, ir.FileLineColLoc):
            return "", f"{location.filename}:{location.start_line}"
        if isinstance(location, ir.NameLoc):
            # The outermost name is the op's; the inner ones are those of Python functions.
            return location.name_str.rstrip(":"), self._place(location.child_loc)[1]
        if isinstance(location, ir.CallSiteLoc):
            name, frame = self._place(location.callee)
            return name, _nearer(frame, self._place(location.caller)[1])
        if isinstance(location, ir.FusedLoc):
            places = [self._place(part) for part in location.locations]
            return max(places, key=lambda place: (bool(place[1]), bool(place[0])), default=("", ""))
        return "", ""


def _nearer(frame: str, around: str) -> str:
    """Of a line and one that leads to it, the one that is nearer to what the user wrote."""
    if not frame or (_is_installed(frame) and around and not _is_installed(around)):
        return around
    return frame


def _is_installed(frame: str) -> bool:
    return any(folder in frame for folder in _INSTALLED)
