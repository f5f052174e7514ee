"""The parameters that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from hlo_mlc.support.options import CHOICES, Options

FILE = click.Path(dir_okay=False, path_type=Path)

ENTRY = "main"

choose = click.option(
    "--choose",
    type=click.Choice(CHOICES),
    default=lambda: Options.from_environment().choose,
    show_default="HLO_MLC_CHOOSE, else auto",
    help="Predict whose kernels are faster, measure it, or take always ours or XLA's.",
)

target = click.option(
    "--target",
    default=lambda: Options.from_environment().target,
    show_default="HLO_MLC_TARGET, else cpu",
    help="What to compile for: cpu is this machine, x86-64-v2, x86-64-v3 or x86-64-v4 one that has "
    "no more instructions.",
)

entry = click.option(
    "--entry",
    default=ENTRY,
    show_default=True,
    metavar="NAME",
    help="Which function of a StableHLO file.",
)

json_path = click.option(
    "--json", "json_path", type=FILE, help="Writes the results here, too, as JSON."
)

x64 = click.option("--x64", is_flag=True, help="With 64-bit types enabled in JAX (else 32-bit).")

argument_files = click.option(
    "--arg-file",
    "files",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Arguments to measure with: a .npy file for each, or a .npz file with all in order.",
)


def storage(required: bool = False) -> click.decorators.FC:
    """`--storage URL`"""
    otherwise = "" if required else "; else a journal in HLO_MLC_CACHE"
    return click.option(
        "--storage",
        metavar="URL",
        required=required,
        help="A database for the studies of a team: "
        f"postgresql://USER@HOST/NAME, mysql://…, sqlite:///FILE{otherwise}.",
    )


ARGUMENT_HELP = (
    "Type and shape of an argument of the function, as f32[512,1024] or i32[]; one --arg for each."
)


def argument_types(text: str = ARGUMENT_HELP) -> click.decorators.FC:
    """`--arg f32[512,1024]`, once for each argument of a function."""
    return click.option("--arg", "given", multiple=True, metavar="TYPE", help=text)
