"""Schedules: naive loops rewritten step by step, by primitives that keep what is computed."""

from hlo_mlc.schedule.core import Schedule, Step, Trace, replay

__all__ = ["Schedule", "Step", "Trace", "replay"]
