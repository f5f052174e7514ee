"""Expansion of scalar ops that targets lack into ops that every printer has."""

from hlo_mlc.codegen.legalize.expand import Abilities, is_data, legalize

__all__ = ["Abilities", "is_data", "legalize"]
