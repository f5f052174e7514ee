"""Which cases of the bench show a threshold of fusion: where it decides something that a quarter of
it, or four times as much, would decide otherwise.

    python scripts/thresholds.py [CASE ...]    # by default all cases, without their neighbours

A line for each number at the top of a module of `partition/lower/` or `partition/fuse/`. A number
that no case shows goes, or gets a case (`bench/hlo_mlc_bench/cases/fusion.py`). Nothing is built or
run.
"""

from __future__ import annotations

import ast
import importlib
import math
import operator
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import jax

import hlo_mlc.partition as package
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.compiler import clusters_of
from hlo_mlc.partition.fuse.limits import LIMITS, ROW_LIMIT
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import named
from hlo_mlc_bench.cases import BY_NAME
from hlo_mlc_bench.script import arguments

_FACTOR = 4
_MOST = 12  # cases that a line names


class Watch:
    """Notes which thresholds decide something in the case at hand."""

    def __init__(self) -> None:
        self.case = ""
        self.seen: dict[str, dict[str, None]] = {}

    def number(self, name: str, value: float) -> Any:
        """A number that is compared as `value` is, and notes where it matters."""
        self.seen[name] = {}
        return _numbers(type(value), self).of(value, value / _FACTOR, value * _FACTOR, {name})


def _numbers(kind: type, watch: Watch) -> Any:
    """The class of numbers of a kind, with the lowest and highest that they might be."""

    class Number(kind):
        @classmethod
        def of(cls, value: float, low: float, high: float, names: set[str]) -> Number:
            made = cls(value)
            made.plain, made.low, made.high, made.names = value, low, high, names
            return made

    def compared(is_so: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
        def method(self: Any, other: Any) -> bool:
            own = (self.plain, self.low, self.high)
            its = (other.plain, other.low, other.high) if hasattr(other, "names") else (other,)
            found = is_so(own[0], its[0])
            for names, answers in (
                (self.names, [is_so(x, its[0]) for x in own]),
                (getattr(other, "names", ()), [is_so(own[0], x) for x in its]),
            ):
                if any(answer != found for answer in answers):
                    for name in names:
                        watch.seen[name][watch.case] = None
            return found

        return method

    def combined(op: Callable[[Any, Any], Any], turned: bool) -> Callable[[Any, Any], Any]:
        def method(self: Any, other: Any) -> Any:
            names, its = self.names, (other, other, other)
            if hasattr(other, "names"):
                names = names | other.names
                its = (other.plain, other.low, other.high)
            own = (self.plain, self.low, self.high)
            value, *bounds = (
                op(b, a) if turned else op(a, b) for a, b in zip(own, its, strict=True)
            )
            return _numbers(type(value), watch).of(value, min(bounds), max(bounds), names)

        return method

    def applied(function: Callable[[Any], Any], number: Any) -> Any:
        value, *bounds = map(function, (number.plain, number.low, number.high))
        return _numbers(type(value), watch).of(value, min(bounds), max(bounds), number.names)

    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Number, f"__{name}__", compared(getattr(operator, name)))
    Number.__hash__ = kind.__hash__
    Number.__bool__ = lambda number: number != 0
    Number.__ceil__ = lambda number: applied(math.ceil, number)
    Number.__neg__ = lambda number: applied(operator.neg, number)
    for name in ("add", "sub", "mul", "floordiv", "truediv"):
        setattr(Number, f"__{name}__", combined(getattr(operator, name), turned=False))
        setattr(Number, f"__r{name}__", combined(getattr(operator, name), turned=True))
    return Number


def main(cases: list[str]) -> None:
    """Prints a line for each threshold."""
    watch = Watch()
    backend = _watching(watch)
    for name in cases or [name for name in BY_NAME if "/" not in name]:
        with BY_NAME[name].in_its_mode():
            function, args = BY_NAME[name].make()
            module = jax.jit(function).lower(*args).compiler_ir("stablehlo")
            watch.case = name
            clusters_of(module, Options(choose="ours"), backend=backend)
    for name, seen in watch.seen.items():
        more = f" and {len(seen) - _MOST} more" if len(seen) > _MOST else ""
        print(f"{name}: {', '.join(list(seen)[:_MOST]) or 'nothing'}{more}")


def _watching(watch: Watch) -> CpuBackend:
    """Puts watched numbers in the places of all thresholds."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    rows = ROW_LIMIT
    for module in modules:
        if module.__name__.split(".")[2] not in ("lower", "fuse"):
            continue
        for name in _assigned(module):
            value = vars(module)[name]
            number = watch.number(f"{module.__name__.split('.')[-1]}.{name}", value)
            for other in [module] if name.startswith("_") else modules:
                if vars(other).get(name) is value:
                    setattr(other, name, number)
            rows = number if name == "ROW_LIMIT" else rows
    limits = replace(LIMITS, row_elements=rows)
    backend = type("Watching", (CpuBackend,), {"limits": limits})
    return backend(replace(named("x86-64-v4"), cores=2))


def _assigned(module: ModuleType) -> Iterator[str]:
    with open(module.__file__) as source:
        tree = ast.parse(source.read())
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets = node.targets[0]
            for target in targets.elts if isinstance(targets, ast.Tuple) else node.targets:
                if isinstance(vars(module)[target.id], int | float):
                    yield target.id


if __name__ == "__main__":
    main(arguments(__doc__))
