"""The templates for GPUs, most specific first; none of their default parameters were measured."""

from __future__ import annotations

from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Template
from hlo_mlc.templates.cuda.columns import ColumnsTemplate
from hlo_mlc.templates.cuda.contraction import ContractionTemplate
from hlo_mlc.templates.cuda.elementwise import ElementwiseTemplate
from hlo_mlc.templates.cuda.plain import PlainTemplate
from hlo_mlc.templates.cuda.rows import RowsTemplate
from hlo_mlc.templates.cuda.scan import ScanTemplate
from hlo_mlc.templates.cuda.scatter import ScatterTemplate
from hlo_mlc.templates.cuda.transpose import TransposeTemplate
from hlo_mlc.templates.cuda.window import WindowTemplate

TEMPLATES: tuple[Template[CudaTarget], ...] = (
    WindowTemplate(),
    ContractionTemplate(),
    ColumnsTemplate(),
    ScanTemplate(),
    RowsTemplate(),
    TransposeTemplate(),
    ElementwiseTemplate(),
    ScatterTemplate(),
    PlainTemplate(),
)
