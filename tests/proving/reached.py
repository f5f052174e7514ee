"""Which lines of a rule have given something."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import FrameType


def _returns(body: list[ast.stmt]) -> Iterator[ast.Return]:
    """The statements of a function that return something, without those of functions in it."""
    for statement in body:
        if isinstance(statement, ast.Return):
            if not (isinstance(statement.value, ast.Constant) and statement.value.value is None):
                yield statement
        elif not isinstance(statement, ast.FunctionDef):
            yield from _returns(
                [n for n in ast.iter_child_nodes(statement) if isinstance(n, ast.stmt)]
            )


class Reached:
    """Which lines a rule has given something in place of a node at."""

    def __init__(self, rule: Callable) -> None:
        self._code, self._lines, self._before = rule.__code__, set(), sys.gettrace()
        lines, first = inspect.getsourcelines(rule)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        self._wanted = [
            (first + n.lineno - 1, first + n.end_lineno - 1) for n in _returns(tree.body[0].body)
        ]

    def __enter__(self) -> Reached:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, value: object) -> Callable | None:
        if frame.f_code is not self._code:
            return None
        frame.f_trace_lines = False
        return self._returned

    def _returned(self, frame: FrameType, event: str, value: object) -> Callable:
        if event == "return" and value is not None:
            self._lines.add(frame.f_lineno)
        return self._returned

    @property
    def missing(self) -> list[int]:
        return [
            first for first, last in self._wanted if self._lines.isdisjoint(range(first, last + 1))
        ]
