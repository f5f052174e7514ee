"""Exports a JAX function ahead of time: its program and the machine code of its kernels, one file.

Usage: python scripts/aot_export.py MODULE:FUNCTION --arg f32[8,128] --output model.mlc
The same as `hlo-mlc export`, which `--help` explains; `hlo_mlc.load("model.mlc")` gives it back.
"""

from __future__ import annotations

import sys

from hlo_mlc.cli import main

if __name__ == "__main__":
    main(["export", *sys.argv[1:]], prog_name="hlo-mlc")
