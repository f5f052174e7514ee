"""The first page of the dashboard: every kernel that is or was tuned, at a glance."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

import optuna
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from hlo_mlc.tuning.history import attempt_of
from hlo_mlc.tuning.study import OF_LIMIT, SHARE_OF

_FOLDER = Path(__file__).parents[1] / "report_page"


def overview_page() -> str:
    """The page, which asks for `overview.json` and goes on asking."""
    style, script, frame = (
        (_FOLDER / name).read_text("utf-8") for name in ("page.css", "overview.js", "overview.html")
    )
    return Template(frame).substitute(style=style, script=script)


def overview_json(storage: BaseStorage) -> str:
    """What the page shows: for each study its kernel, what was found, and every trial as (number,
    how many times as fast as the default schedule, 0 where it failed)."""
    rows = []
    for summary in optuna.get_all_study_summaries(storage):
        study = optuna.load_study(study_name=summary.study_name, storage=storage)
        known, trials = study.user_attrs, study.get_trials(deepcopy=False)
        tried = [one for trial in trials if (one := attempt_of(trial)) is not None]
        ended = [trial.datetime_complete for trial in trials if trial.datetime_complete]
        rows.append(
            {
                "study": f"dashboard/studies/{study._study_id}",
                "name": known.get("name") or known.get("ops") or study.study_name,
                "ops": known.get("ops", ""),
                "target": known.get("target", ""),
                "best": known.get("best") or known.get("default", []),
                "is_default": not known.get("best"),
                "recorded": "us" in known,
                "us": known.get("us", 0.0),
                "choice": known.get("choice", ""),
                "over_default": known.get("speedup over the default", 0.0),
                "over_xla": known.get("speedup over XLA", 0.0),
                "of_limit": known.get(OF_LIMIT, 0.0),
                "shares": {
                    name.removeprefix(SHARE_OF): share
                    for name, share in known.items()
                    if name.startswith(SHARE_OF)
                },
                "trials": [(one.number, round(one.speedup, 4)) for one in tried],
                "running": sum(trial.state is TrialState.RUNNING for trial in trials),
                "last": max(ended).strftime("%Y-%m-%d %H:%M") if ended else "",
            }
        )
    return json.dumps(sorted(rows, key=lambda row: row["last"], reverse=True))
