"""Expansion of scalar ops that targets lack into ops that every printer has."""

from hlo_mlc.codegen.legalize.expand import is_data, legalize

__all__ = ["is_data", "legalize"]
