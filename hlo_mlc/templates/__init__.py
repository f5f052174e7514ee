"""The templates, most specific first."""

from hlo_mlc.templates.base import Parameters, Scheduled, Template
from hlo_mlc.templates.columns import ColumnsTemplate
from hlo_mlc.templates.contraction import ContractionTemplate
from hlo_mlc.templates.elementwise import ElementwiseTemplate
from hlo_mlc.templates.plain import PlainTemplate
from hlo_mlc.templates.reduction import ReductionTemplate

TEMPLATES: tuple[Template, ...] = (
    ContractionTemplate(), ColumnsTemplate(), ReductionTemplate(), ElementwiseTemplate(),
    PlainTemplate())

__all__ = ["TEMPLATES", "Parameters", "Scheduled", "Template"]
