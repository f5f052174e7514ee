"""Schedules: naive loops rewritten step by step, by primitives that keep what is computed."""
