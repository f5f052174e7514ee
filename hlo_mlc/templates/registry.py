"""The templates, most specific first."""

from __future__ import annotations

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.attention import AttentionTemplate
from hlo_mlc.templates.base import Template
from hlo_mlc.templates.columns import ColumnsTemplate
from hlo_mlc.templates.contraction import ContractionTemplate
from hlo_mlc.templates.dot import DotTemplate
from hlo_mlc.templates.elementwise import ElementwiseTemplate
from hlo_mlc.templates.plain import PlainTemplate
from hlo_mlc.templates.reduction import ReductionTemplate
from hlo_mlc.templates.scan import ScanTemplate
from hlo_mlc.templates.short import ShortTemplate
from hlo_mlc.templates.side_by_side import SideBySideTemplate
from hlo_mlc.templates.side_by_side_steps import SideBySideStepsTemplate
from hlo_mlc.templates.sorting import SortTemplate
from hlo_mlc.templates.stepwise import StepwiseTemplate
from hlo_mlc.templates.tiled import DerivedTemplate, TiledTemplate
from hlo_mlc.templates.transpose import TransposeTemplate
from hlo_mlc.templates.unrolled import UnrolledTemplate
from hlo_mlc.templates.update import UpdateTemplate
from hlo_mlc.templates.window import WindowTemplate

TEMPLATES: tuple[Template[CpuTarget], ...] = (
    ShortTemplate(),
    SortTemplate(),
    AttentionTemplate(),
    WindowTemplate(),
    DotTemplate(),
    ContractionTemplate(),
    ScanTemplate(),
    TiledTemplate(),
    ColumnsTemplate(),
    SideBySideTemplate(),
    ReductionTemplate(),
    SideBySideStepsTemplate(),
    StepwiseTemplate(),
    UnrolledTemplate(),
    TransposeTemplate(),
    ElementwiseTemplate(),
    UpdateTemplate(),
    DerivedTemplate(),
    PlainTemplate(),
)
