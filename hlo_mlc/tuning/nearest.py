"""What was found for kernels that compute the same of other sizes: where a search begins."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NEAREST = 2
"""How many kernels of other sizes have a say in what is tried first."""

_NUMBER = re.compile(r"\d+")
_FINGERPRINT = re.compile(r" ([0-9a-f]+)-\S+$")  # in a study's name


@dataclass(frozen=True, slots=True)
class Outline:
    """A kernel's text without its numbers, and these in their order, as logarithms."""

    words: str
    numbers: tuple[float, ...]

    @staticmethod
    def of(text: str) -> Outline:
        """That of the text of a tensor program."""
        return Outline(
            _NUMBER.sub("#", text),
            tuple(math.log1p(float(found[:18])) for found in _NUMBER.findall(text)),
        )

    def distance(self, numbers: tuple[float, ...]) -> float:
        """By how many times as much all numbers differ from others."""
        return sum(abs(one - other) for one, other in zip(self.numbers, numbers, strict=True))


@dataclass(slots=True)
class Neighbours:
    """The kernels that were tuned on a kind of machine, by their outlines."""

    _kernels: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, studies: Mapping[str, Mapping[str, Any]], machine: str) -> Neighbours:
        """Those of studies, by their names, that say such things of themselves."""
        found = cls()
        for study, said in studies.items():
            name = _FINGERPRINT.search(study)
            if name and "kernel" in said and said.get("target") == machine:
                found.add(name[1], said["kernel"])
        return found

    def add(self, fingerprint: str, text: str) -> None:
        """One more kernel, by the text of its tensor program."""
        outline = Outline.of(text)
        self._kernels.setdefault(outline.words, {})[fingerprint] = outline.numbers

    def nearest(self, fingerprint: str, text: str) -> list[str]:
        """The fingerprints of others that differ from a kernel in nothing but numbers, and in these
        the least, the nearest first."""
        outline = Outline.of(text)
        alike = self._kernels.get(outline.words, {})
        others = (one for one in alike if one != fingerprint)
        return heapq.nsmallest(NEAREST, others, key=lambda one: (outline.distance(alike[one]), one))
