"""The command `hlo-mlc`."""

from __future__ import annotations

from hlo_mlc.cli.root import main

__all__ = ["main"]
