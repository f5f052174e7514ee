"""A kernel on its way through a database to those who take trials of it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hlo_mlc.support.errors import UsageError

DEFAULT_TRIALS = 200
"""How many trials a kernel gets of a whole team where nobody says."""

_PIECE = 60_000  # characters: a text of MySQL holds 65,535 bytes
_LARGEST_BYTES = 64 << 20
_ATTRIBUTE = "kernel as shared"


@dataclass(frozen=True, slots=True)
class SharedKernel:
    """A kernel of the function @entry of a module, the kind of machine that it is for, and what
    decides which kernels the module has."""

    fingerprint: str
    target: str
    module: bytes
    entry: str
    choose: str
    x64: bool
    trials: int

    def attributes(self) -> dict[str, str]:
        """The kernel as attributes of a study.

        Raises: UsageError for one that comes with too large constants.
        """
        if len(self.module) > _LARGEST_BYTES:
            raise UsageError(
                f"the program's constants take {len(self.module) >> 20} MiB, which "
                "are too many to share: let it take them as arguments"
            )
        content = json.dumps(asdict(self) | {"module": base64.b64encode(self.module).decode()})
        text = base64.b85encode(zlib.compress(content.encode())).decode()
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        return {
            _ATTRIBUTE: str(len(pieces)),
            **{f"{_ATTRIBUTE} {n}": piece for n, piece in enumerate(pieces)},
        }

    @classmethod
    def read(cls, known: Mapping[str, Any]) -> SharedKernel | None:
        """The kernel of a study with these attributes, if it is shared as a whole."""
        try:
            text = "".join(known[f"{_ATTRIBUTE} {n}"] for n in range(int(known[_ATTRIBUTE])))
            content = json.loads(zlib.decompress(base64.b85decode(text)))
            return cls(**content | {"module": base64.b64decode(content["module"])})
        except (KeyError, TypeError, ValueError, zlib.error):
            return None
