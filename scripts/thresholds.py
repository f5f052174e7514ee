"""Which cases of the bench show a threshold of fusion: whose kernels change where it is another.

    python scripts/thresholds.py [NAME ...] [--cases CASE ...]    # by default all, of all cases

Each threshold of `partition/lower/` and `partition/fuse/` is taken to be a quarter of what it is,
and four times. Cases that are named have other kernels then; what no case shows is a limit that
nothing in the bench comes near to. Nothing is built or run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType

import jax

import hlo_mlc.partition as partition_package
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.compiler import clusters_of
from hlo_mlc.graph.core import Graph
from hlo_mlc.partition.choose.cost import choose_all
from hlo_mlc.partition.plan import partition
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import named
from hlo_mlc_bench.cases import BY_NAME

_FACTOR = 4
_BACKEND = CpuBackend(replace(named("x86-64-v4"), cores=2))
_ROWS = "ROW_LIMIT"  # comes with the backend's limits


def main() -> None:
    """Prints a line for each threshold, and for each side of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--cases", nargs="*", default=[name for name in BY_NAME if "/" not in name])
    given = parser.parse_args()
    graphs = {name: _graph(name) for name in given.cases}
    usual = {name: _kernels(graph) for name, graph in graphs.items()}
    for where, (modules, value) in thresholds().items():
        name = where.partition(".")[2]
        if given.names and name not in given.names:
            continue
        for other in (type(value)(value / _FACTOR), value * _FACTOR):
            with _set(modules, name, other):
                changed = [
                    case
                    for case, graph in graphs.items()
                    if _kernels(graph, **({"row": other} if name == _ROWS else {})) != usual[case]
                ]
            print(f"{where} = {value} as {other}: {', '.join(changed) or 'nothing'}", flush=True)


def thresholds() -> Mapping[str, tuple[list[ModuleType], float]]:
    """The numbers that modules of both floors have at their top, and who knows them."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.walk_packages(
            partition_package.__path__, f"{partition_package.__name__}."
        )
    ]
    found = {}
    for module in modules:
        if module.__name__.split(".")[2] in ("lower", "fuse"):
            for name in _assigned(module):
                value = vars(module)[name]
                who = (
                    [m for m in modules if vars(m).get(name) == value]
                    if name[0] != "_"
                    else [module]
                )
                found[f"{module.__name__.split('.')[-1]}.{name}"] = (who, value)
    return found


def _assigned(module: ModuleType) -> Iterator[str]:
    with open(module.__file__) as source:
        tree = ast.parse(source.read())
    for node in tree.body:
        if isinstance(node, ast.Assign):
            targets = node.targets[0]
            for target in targets.elts if isinstance(targets, ast.Tuple) else node.targets:
                if isinstance(vars(module)[target.id], int | float):
                    yield target.id


@contextlib.contextmanager
def _set(modules: list[ModuleType], name: str, value: float) -> Iterator[None]:
    before = [vars(module)[name] for module in modules]
    for module in modules:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            setattr(module, name, old)


def _graph(name: str) -> Graph:
    with BY_NAME[name].in_its_mode():
        function, args = BY_NAME[name].make()
        module = jax.jit(function).lower(*args).compiler_ir("stablehlo")
        graph, _ = clusters_of(module, Options(choose="ours"), backend=_BACKEND)
    print(".", end="", file=sys.stderr, flush=True)
    return graph


def _kernels(graph: Graph, row: int | None = None) -> list[str]:
    limits = _BACKEND.limits if row is None else replace(_BACKEND.limits, row_elements=row)
    plan = partition(
        graph, lambda cluster: choose_all(cluster, _BACKEND.target), _BACKEND.costs, limits=limits
    )
    return [cluster.kernel.fingerprint for cluster, _ in plan.taken]


if __name__ == "__main__":
    main()
