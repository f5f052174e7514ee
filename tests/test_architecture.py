"""The floors of the house: files import one way only, and each spelling lives in one place."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from hlo_mlc.expr.ops import OPS
from hlo_mlc.loops.core import Stmt
from hlo_mlc.ops.registry import DEFINITIONS

PACKAGE = Path(__file__).parent.parent / "hlo_mlc"

# Bottom first: a file may import from floors before its own, and from its own.
FLOORS = (
    "support",
    "target",
    "expr",
    "tensor",
    "graph",
    "ops",
    "frontend",
    "passes",
    "loops",
    "schedule",
    "templates",
    "partition",
    "codegen",
    "runtime",
    "tuning",
    "limits",
    "report",
    "backends",
    "kernel_objects",
    "promises",
    "building",
    "preloading",
    "kept_programs",
    "reporting",
    "compiler",
    "page",
    "explain",
    "interop",
    "cli",
    "__main__",
)
# Those of partition/, bottom first; what its files have in common stands below all of them.
PARTITION = ("lower", "fuse", "naming", "cluster", "calls", "plan", "planner", "drawing", "choose")
OP_NAMES = OPS.keys() | {name.rpartition(".")[2] for name in DEFINITIONS}
FILES = sorted(PACKAGE.rglob("*.py"))


def floor_of(module: str) -> str:
    """The floor of a dotted module name below `hlo_mlc`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    relative = path.relative_to(PACKAGE.parent).with_suffix("")
    parts = [p for p in relative.parts if p != "__init__"]
    return ".".join(parts)


MODULES = {module_of(path): path for path in FILES}


@dataclass(frozen=True, slots=True)
class File:
    """What the rules ask of a file: where it imports what of our own, anywhere and inside of
    functions, where it lists which ops, and what it calls by a name."""

    imports: list[tuple[int, str]]
    hidden: list[tuple[int, str]]
    listings: list[tuple[int, list[str]]]
    called: set[str]


@cache
def read(module: str) -> File:
    """Read once for all rules."""
    imports, hidden, listings, called = [], [], [], set()
    tree = ast.parse(MODULES[module].read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            imports += own_imports(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            hidden += [found for inner in ast.walk(node) for found in own_imports(inner)]
        elif isinstance(node, ast.Set | ast.List | ast.Tuple):
            listed = {
                e.value.rpartition(".")[2]
                for e in node.elts
                if isinstance(e, ast.Constant) and isinstance(e.value, str)
            } & OP_NAMES
            listings.append((node.lineno, sorted(listed)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
    return File(imports, hidden, listings, called)


def own_imports(node: ast.AST) -> list[tuple[int, str]]:
    """The imports of our own package in one statement, as (line, module)."""
    if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
        if node.module.split(".")[0] == "hlo_mlc":
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            return [(node.lineno, name if name in MODULES else node.module) for name in names]
    elif isinstance(node, ast.Import):
        return [(node.lineno, a.name) for a in node.names if a.name.split(".")[0] == "hlo_mlc"]
    return []


def test_imports_go_down_only() -> None:
    faults = []
    for module in MODULES:
        own = floor_of(module)
        if not own:  # the package's front door
            continue
        assert own in FLOORS, f"{module} is on no floor; add its package to FLOORS where it belongs"
        for line, imported in read(module).imports:
            if imported == "hlo_mlc":
                if own != "cli":
                    faults.append(f"{module}:{line} imports the package's front door")
            elif FLOORS.index(floor_of(imported)) > FLOORS.index(own):
                faults.append(f"{module}:{line} imports {imported}, which is above it")
    assert not faults, "\n".join(faults)


def test_partition_is_three_floors() -> None:
    def floor(module: str) -> int:
        part = module.split(".")[2]
        return PARTITION.index(part) if part in PARTITION else -1

    inside = [name for name in MODULES if name.startswith("hlo_mlc.partition.")]
    assert {name.split(".")[2] for name in inside} > set(PARTITION)
    for module in inside:
        for line, imported in read(module).imports:
            if imported in inside:
                assert floor(imported) <= floor(module), (
                    f"{module}:{line} imports {imported}, which is above it"
                )


def test_no_import_inside_a_function() -> None:
    faults = [
        f"{module}:{line} imports {imported} inside a function"
        for module in MODULES
        for line, imported in read(module).hidden
    ]
    assert not faults, "\n".join(faults)


# Floors that say what ops are, and those that say how each is written or computed.
OP_TABLES = ("expr", "ops", "frontend", "loops", "codegen")
MOST_LISTED = 4


def test_facts_about_ops_stand_with_the_ops() -> None:
    faults = [
        f"{module}:{line} lists ops by name: {listed}; what they have in common is a column "
        "of expr/ops.py or ops/definition.py"
        for module in MODULES
        for line, listed in read(module).listings
        if len(listed) > MOST_LISTED and floor_of(module) not in OP_TABLES
    ]
    assert not faults, "\n".join(faults)


# What constructs loops in templates/: scans, attention and sorting, which are no rewrites of naive
# nests, and what puts nests into programs.  This list only shrinks.
BY_HAND = (
    "attention.",
    "by_hand",
    "cuda.program",
    "cuda.scan",
    "program",
    "scan_loops",
    "sorting.",
)
SCHEDULES = [
    name
    for module in MODULES
    if module.startswith("hlo_mlc.templates.")
    and not (name := module.removeprefix("hlo_mlc.templates.")).startswith(BY_HAND)
]
LOOPS = ("loop", "serial", "vectorized", "unrolled", "allocated", "store", "fold")
LOOP_BUILDERS = {*(s.__name__ for s in get_args(Stmt)), *LOOPS}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_construct_no_loops(name: str) -> None:
    built = read(f"hlo_mlc.templates.{name}").called & LOOP_BUILDERS
    assert not built, f"templates/{name}.py builds {sorted(built)}: what schedule/ is for"


def test_no_cycles_between_files() -> None:
    edges = {name: {other for _, other in read(name).imports if other != name} for name in MODULES}
    state: dict[str, int] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        if state.get(name) == 2:
            return
        assert state.get(name) != 1, f"import cycle: {' -> '.join((*trail, name))}"
        state[name] = 1
        for other in edges[name]:
            visit(other, (*trail, name))
        state[name] = 2

    for name in MODULES:
        visit(name, ())


def test_code_spellings_stay_in_codegen() -> None:
    spellings = ("getelementptr", "llvm.fma", "__global__", "threadIdx", "shufflevector")
    faults = [
        f"{module} spells {spelling!r}"
        for module, path in MODULES.items()
        if floor_of(module) != "codegen"
        for spelling in spellings
        if spelling in path.read_text()
    ]
    assert not faults, "\n".join(faults)
