"""Attention: the template, and the loops of one block of rows."""

from hlo_mlc.templates.attention.template import AttentionTemplate

__all__ = ["AttentionTemplate"]
