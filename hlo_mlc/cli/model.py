"""`hlo-mlc model`: what helps tuning to guess which schedules are fast."""

from __future__ import annotations

import click

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import counted
from hlo_mlc.tuning.model import model_path
from hlo_mlc.tuning.storage import journal_path
from hlo_mlc.tuning.training import train


@click.group()
def model() -> None:
    """Trains the model of what schedules take, by which tuning orders its trials."""


@model.command("train")
def train_model() -> None:
    """Learns from what was tuned on this kind of CPU.

    That is what is in HLO_MLC_CACHE. It takes scikit-learn (the extra `model`). Tuning uses what
    was learned from then on, as long as the file is there.
    """
    options = Options.from_environment()
    target = target_of(options)
    trained = train(journal_path(options), target)
    path = model_path(options.cache_dir, target)
    trained.forest.save(path)
    click.echo(
        f"trained on {counted(trained.trials, 'trial')} of "
        f"{counted(trained.kernels, 'kernel')}: {path}"
    )
