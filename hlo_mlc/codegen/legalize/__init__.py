"""Expansion of scalar ops that targets lack into ops that every printer has."""

from hlo_mlc.codegen.legalize.expand import legalize

__all__ = ["legalize"]
