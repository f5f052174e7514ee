"""The studies in a browser: an overview of ours, and optuna-dashboard with a note of ours on each.

There is no authentication: who can reach the address can change the studies.
"""

from __future__ import annotations

import contextlib
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
from optuna.storages import BaseStorage

from hlo_mlc.runtime.records import OURS, XLA
from hlo_mlc.support.errors import CacheError, UsageError
from hlo_mlc.tuning.overview import overview_json, overview_page
from hlo_mlc.tuning.storage import open_studies
from hlo_mlc.tuning.study import quiet

_REFRESH_S = 10.0  # how old a note may be while somebody looks
_COLUMNS = 110  # of a kernel's text in a note
_OWN_NOTE = "note"  # the attribute with the note as we wrote it: one that was edited is left alone

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


_OWN: dict[str, tuple[str, Callable[[BaseStorage], str]]] = {
    "/": ("text/html", lambda storage: overview_page()),
    "/overview.json": ("application/json", overview_json),
}
"""What we serve ourselves, in front of optuna-dashboard."""


class _Server(ThreadingMixIn, WSGIServer):
    """A page makes several requests at once."""

    daemon_threads = True


class _SilentHandler(WSGIRequestHandler):
    """Requests are of no interest to who started the server."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def make_dashboard(studies: Path | str, host: str, port: int) -> WSGIServer:
    """A server of the studies in a journal or a database, to be run with `serve_forever`; its port
    is `server_port`, any free one if `port` is 0.

    Raises: UsageError without optuna-dashboard, or for an address that cannot be had.
    """
    try:
        import optuna_dashboard
    except ImportError as error:
        raise UsageError(
            "The dashboard takes the package `optuna-dashboard`: pip install 'hlo-mlc[dashboard]'"
        ) from error
    with quiet():
        storage = open_studies(studies)
        application = _Noted(
            optuna_dashboard.wsgi(storage),
            storage,
            optuna_dashboard.get_note,
            optuna_dashboard.save_note,
        )
    try:
        return make_server(host, port, application, _Server, _SilentHandler)
    except OSError as error:
        raise UsageError(f"Cannot listen on {host}:{port}: {error.strerror or error}") from error


class _Noted:
    """The overview, and the dashboard's application; notes are kept up to date while somebody
    looks."""

    def __init__(
        self,
        application: Application,
        storage: BaseStorage,
        get_note: Callable[[optuna.Study], str],
        save_note: Callable[[optuna.Study, str], None],
    ) -> None:
        self._application, self._storage = application, storage
        self._get, self._save = get_note, save_note
        self._lock = threading.Lock()
        self._refreshed = -_REFRESH_S

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        with self._lock:
            if time.monotonic() - self._refreshed >= _REFRESH_S:
                self._refreshed = time.monotonic()
                with contextlib.suppress(CacheError):  # the disk is full: the notes stay as old
                    self._refresh()
        if own := _OWN.get(environ["PATH_INFO"]):
            kind, content = own
            with quiet():
                body = content(self._storage).encode()
            start_response(
                "200 OK",
                [("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(len(body)))],
            )
            return [body]
        return self._application(environ, start_response)

    def _refresh(self) -> None:
        with quiet():
            for name in optuna.get_all_study_names(self._storage):
                study = optuna.load_study(study_name=name, storage=self._storage)
                known = study.user_attrs
                text, there = note_text(known), self._get(study)
                if "kernel" in known and text != there and there == known.get(_OWN_NOTE, ""):
                    self._save(study, text)
                    study.set_user_attr(_OWN_NOTE, text)


def note_text(known: dict[str, Any]) -> str:
    """What is known of a kernel, in Markdown."""
    what = ": ".join(filter(None, (known.get("name", ""), known.get("ops", ""))))
    lines = [f"**{what or 'a kernel'}**", "", f"on {known.get('target', 'a CPU')}", ""]
    measured = "us" in known
    best, default = known["best"] if measured else [], known.get("default", [])
    if measured:
        ratio = known["speedup over XLA"]
        taken = {OURS: "our kernel is taken", XLA: "XLA's code is kept", "": "too near to tell"}
        lines += [
            f"- {known['us']:.1f} us a call",
            f"- speed-up over the default: {known['speedup over the default']:.2f}",
            f"- speed-up over XLA: {ratio:.2f} ({taken[known['choice']]})"
            if ratio
            else "- speed-up over XLA: not measured",
            *_listed("best schedule" if best else "best schedule, the default", best or default),
        ]
    else:
        lines.append("- there is no winner yet")
    lines += _listed("default schedule", default if best or not measured else [])
    kernel = [
        piece for line in known.get("kernel", "").rstrip().splitlines() for piece in _wrapped(line)
    ]
    return "\n".join([*lines, "", "```", *kernel, "```", ""])


def _listed(title: str, nests: Sequence[str]) -> list[str]:
    return [f"- {title}:", *(f"  - `{nest}`" for nest in nests)] if nests else []


def _wrapped(line: str) -> list[str]:
    """A line of a kernel's text in pieces that a page shows without scrolling."""
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        line,
        _COLUMNS,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    ) or [line]
