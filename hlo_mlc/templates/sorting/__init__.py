"""Sorts: the template, and its ways of putting records in order."""

from hlo_mlc.templates.sorting.template import SortTemplate, sorting_tasks, sorting_us

__all__ = ["SortTemplate", "sorting_tasks", "sorting_us"]
