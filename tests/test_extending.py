"""A new op, instruction, template and backend, each put where CONTRIBUTING.md says and nowhere
else, in a copy of the package that a process of its own imports."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import hlo_mlc

PACKAGE = Path(hlo_mlc.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"

# By heading of CONTRIBUTING.md: new files, and lines that go in front of others.
NEW_FILES = {
    "**A scalar function.**": {
        "codegen/legalize/toy.py": """
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Expr


def toy(x: Expr) -> Expr:
    return apply("half", x) / (x * x + 1.0)
"""
    },
    "**A template.**": {
        "templates/toy.py": '''
from hlo_mlc.loops.lower import lower_nest
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_schedule
from hlo_mlc.tensor.classify import is_map
from hlo_mlc.tensor.core import Nest


class ToyTemplate:
    """Maps over one axis, so many at a time."""

    name = "toy"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        (stage, *more) = nest.stages
        return "" if not more and is_map(stage) and len(stage.axes) == 1 else "toys are flat"

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        return {"block": (3, 5, 7)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        return {"block": 7}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        (stage,) = nest.stages
        axis = stage.axes[0].name
        naive = open_schedule(nest, lower_nest((), [stage]))
        return Scheduled.of(naive.split(axis, parameters["block"]).unroll(f"{axis}.i"))
'''
    },
    "**A backend.**": {
        "backends/toy.py": '''
from dataclasses import dataclass, replace

from hlo_mlc.backends.cpu import CpuBackend, LlvmSource, pinned, target_of
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.support.options import Options


@dataclass(frozen=True, slots=True)
class ToyBackend(CpuBackend):
    """CPUs, with the machine's name in the code."""

    @property
    def variant(self) -> str:
        return f"{CpuBackend(self.target, self.pin).variant}-toy"

    @property
    def identity(self) -> str:
        return f"{self.target} toy"

    def print(self, loops: LoopProgram, checked: bool, most_lines: int) -> LlvmSource:
        source = CpuBackend.print(self, loops, checked, most_lines)
        return replace(source, text=f"; made for toys\\n{source.text}")


def toy_backend(options: Options) -> ToyBackend:
    return ToyBackend(target_of(options), pinned(options))
'''
    },
}
NEW_LINES = {
    "**A StableHLO or CHLO op.**": {
        "ops/elementwise.py": (
            '    _row("stablehlo.and"',
            '    _row("chlo.bessel_i1e", "toy", ("f32",)),\n',
        )
    },
    "**A scalar function.**": {
        "expr/ops.py": (
            '    ScalarOp("max", 2',
            """\
    ScalarOp("half", 1, lambda x: x * x.dtype.type(0.5)),
    _function("toy", lambda x: x * x.dtype.type(0.5) / (x * x + x.dtype.type(1)), cost=8),
""",
        ),
        "codegen/legalize/expand.py": ('    "sign": rounding.sign,', '    "toy": toy.toy,\n'),
    },
    "**An instruction.**": {
        "codegen/cpu/scalar.py": (
            '    "mul_high": _multiply_high',
            '    "half": lambda site, x: site.op("fmul", x, site.literal(0.5)),\n',
        )
    },
    "**A template.**": {
        "templates/registry.py": ("    ShortTemplate(),\n", "    ToyTemplate(),\n")
    },
    "**A backend.**": {
        "interop/platforms.py": (
            "def gpu_kernels(",
            "BACKENDS = {**BACKENDS, CPU: toy_backend}\n\n\n",
        )
    },
}
IMPORTS = {
    "codegen/legalize/expand.py": ("    trigonometric,\n", "    toy,\n"),
    "templates/registry.py": (
        "from hlo_mlc.templates.transpose",
        "from hlo_mlc.templates.toy import ToyTemplate\n",
    ),
    "interop/platforms.py": (
        "from hlo_mlc.interop.devices",
        "from hlo_mlc.backends.toy import toy_backend\n",
    ),
}
USER = """
import sys
from pathlib import Path

import jax
import numpy as np

import hlo_mlc

x = np.random.default_rng(0).standard_normal(1001).astype(np.float32)
function = hlo_mlc.mlc_jit(lambda x: jax.lax.bessel_i1e(x) + 1, choose="ours")
report = function.report(x)
assert report.coverage == 1, report
((nest,),) = (kernel.nests for kernel in report.kernels)
assert (nest.template, dict(nest.parameters)) == ("toy", {"block": 7}), nest
np.testing.assert_allclose(function(x), x / 2 / (x * x + 1) + 1, rtol=1e-6)
(printed,) = Path(sys.argv[1]).rglob("*.ll")
assert printed.read_text().startswith("; made for toys"), printed
print("as the toy says")
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a copy of the package with all toys lies."""
    folder = tmp_path_factory.mktemp("extended")
    package = folder / "hlo_mlc"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    library = importlib.util.find_spec("hlo_mlc._runtime").origin  # elsewhere, if installed -e
    shutil.copy(library, package)
    for files in NEW_FILES.values():
        for name, text in files.items():
            (package / name).write_text("from __future__ import annotations\n" + text)
    for insertions in (*NEW_LINES.values(), IMPORTS):
        for name, (before, lines) in insertions.items():
            text = (package / name).read_text()
            assert text.count(before) == 1, (name, before)
            (package / name).write_text(text.replace(before, lines + before))
    return folder


def test_toys_work(copy: Path, tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text(USER)
    packages = os.pathsep.join((str(copy), sysconfig.get_path("purelib")))
    environment = {
        **os.environ,
        "PYTHONPATH": packages,
        "HLO_MLC_CACHE": str(tmp_path / "cache"),
        "HLO_MLC_DUMP": str(tmp_path / "dump"),
    }
    for name in ("HLO_MLC_TARGET", "HLO_MLC_CHECK"):
        environment.pop(name, None)
    # Without what an installation with -e leaves for `site`: it would find the original first.
    command = [sys.executable, "-S", str(user), str(tmp_path / "dump")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "as the toy says" in done.stdout


@pytest.mark.parametrize("heading", NEW_LINES)
def test_the_places_are_those_that_are_listed(heading: str) -> None:
    """A list names a file, or the folder of new ones."""
    text = CONTRIBUTING.read_text()
    paragraph = text[text.index(heading) :].partition("\n\n")[0]
    changed = {*NEW_FILES.get(heading, ()), *NEW_LINES[heading]}
    for name in changed:
        folder, _, _ = name.rpartition("/")
        assert (
            name in paragraph or f"{folder}/" in paragraph or f"{folder}/<family>.py" in paragraph
        ), name
