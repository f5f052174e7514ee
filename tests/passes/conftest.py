"""StableHLO snippets as graphs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph


@pytest.fixture
def read() -> Callable[[str, str], Graph]:
    """read(arguments, body): the graph of a function of these lines, the last one `return`."""

    def read_function(arguments: str, body: str) -> Graph:
        *lines, last = body.strip().splitlines()
        returned, _, types = last.strip().removeprefix("return ").partition(" : ")
        text = "\n".join([*lines, f"func.return {returned} : {types}"])
        function = f"func.func @main({arguments}) -> ({types}) {{\n{text}\n}}"
        return import_function(parse_module(function))

    return read_function
