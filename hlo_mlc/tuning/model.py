"""The cost model: what schedules are predicted to take, relative to the default of their kernel.

A roofline is where it begins, and a forest that has learned from schedules of other kernels, if
there is one, has the same weight: from those of the benchmarks on CPUs of the family, which comes
with the package, and from what was tuned on the machine (`hlo-mlc model train`). What they are
wrong about in one kernel, a Gaussian process learns from that kernel's own trials while it is
tuned.
"""

from __future__ import annotations

import functools
import io
import math
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from hlo_mlc.expr.special import erf
from hlo_mlc.runtime.files import write_whole
from hlo_mlc.support.errors import CacheError, UsageError
from hlo_mlc.support.warning import warn
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tuning.features import NAMES, VOCABULARY

_TAUGHT = Path(__file__).parent / "taught"
_CYCLES = NAMES.index("cycles")
_TREES, _SMALLEST_LEAF, _SHARE_OF_FEATURES = 50, 16, 0.4
# Of the logarithms to learn: which of two bad schedules is worse is nobody's concern.
WORST = math.log(4.0)
_NOISE = 0.02  # of a logarithm of measured times
# What a kernel may be off from a prediction, and how many times as much of things makes schedules
# strangers to each other: the most likely of these is taken.
_SCALES = (0.1, 0.3, 1.0)
_LENGTHS = (1.0, 3.0, 10.0)


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Regression trees over differences of features (tuning/features.py), as arrays.

    A node asks whether feature `feature` is at most `threshold` and goes `left` or `right`; a leaf
    goes to itself. `vocabulary` says which features it knows.
    """

    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    vocabulary: np.ndarray

    def predict(self, differences: np.ndarray) -> np.ndarray:
        """The mean of what the trees say of each row: the logarithm of time / the default's."""
        rows = np.arange(len(differences))
        node = np.broadcast_to(self.roots[:, None], (len(self.roots), len(rows)))
        while True:
            below = differences[rows, self.feature[node]] <= self.threshold[node]
            following = np.where(below, self.left[node], self.right[node])
            if np.array_equal(following, node):
                return self.value[node].mean(0)
            node = following

    @staticmethod
    def trained(differences: np.ndarray, logs: np.ndarray) -> Forest:
        """Learns logarithms of time / the default's from differences of features.

        Raises: UsageError where scikit-learn is missing.
        """
        try:
            from sklearn.ensemble import ExtraTreesRegressor
        except ImportError as error:
            raise UsageError("Training takes scikit-learn: pip install 'hlo-mlc[model]'") from error
        trees = ExtraTreesRegressor(
            _TREES, min_samples_leaf=_SMALLEST_LEAF, max_features=_SHARE_OF_FEATURES, random_state=0
        ).fit(differences, np.minimum(logs, WORST))
        grown = [estimator.tree_ for estimator in trees.estimators_]
        roots = np.cumsum([0, *(tree.node_count for tree in grown)])[:-1]
        places = [np.arange(tree.node_count) for tree in grown]

        def joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
            return np.concatenate(parts).astype(kind)

        def child(name: str) -> np.ndarray:
            sides = (getattr(tree, name) for tree in grown)
            return joined(
                [
                    root + np.where(side < 0, place, side)
                    for root, place, side in zip(roots, places, sides, strict=True)
                ],
                np.int32,
            )

        return Forest(
            roots.astype(np.int32),
            joined([np.maximum(tree.feature, 0) for tree in grown], np.int16),
            joined([tree.threshold for tree in grown], np.float32),
            child("children_left"),
            child("children_right"),
            joined([tree.value[:, 0, 0] for tree in grown], np.float32),
            np.array(VOCABULARY),
        )

    def beside(self, other: Forest) -> Forest:
        """The trees of both, of which the smaller one's are there as often as it takes to have as
        much to say."""
        parts = [self, other]
        trees = [len(part.roots) for part in parts]
        copies = [math.lcm(*trees) // count for count in trees]
        starts = [0, len(self.value)]
        return Forest(
            np.concatenate(
                [
                    np.tile(part.roots + start, count)
                    for part, start, count in zip(parts, starts, copies, strict=True)
                ]
            ),
            np.concatenate([part.feature for part in parts]),
            np.concatenate([part.threshold for part in parts]),
            np.concatenate([p.left + start for p, start in zip(parts, starts, strict=True)]),
            np.concatenate([p.right + start for p, start in zip(parts, starts, strict=True)]),
            np.concatenate([part.value for part in parts]),
            self.vocabulary,
        )

    def save(self, path: Path) -> None:
        """Keeps the forest.

        Raises: CacheError where it cannot be written.
        """
        content = io.BytesIO()
        np.savez_compressed(content, **{f.name: getattr(self, f.name) for f in fields(self)})
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, [content.getvalue()])
        except OSError as error:
            raise CacheError(
                f"The model {path} cannot be written: {error.strerror or error}"
            ) from error

    @staticmethod
    def load(path: Path) -> Forest | None:
        """What was kept; None if nothing was, if it knows other features, or it is damaged, which
        is a warning."""
        try:
            with np.load(path) as content:
                forest = Forest(**{f.name: content[f.name] for f in fields(Forest)})
            forest._check()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            warn(
                f"hlo_mlc: the model {path} is damaged ({error}); going on without: train it "
                "again (hlo-mlc model train)"
            )
            return None
        return forest if forest.vocabulary == VOCABULARY else None

    def _check(self) -> None:
        """Raises: ValueError for what is no forest, or would never end."""
        count = len(self.value)
        parts = (self.feature, self.threshold, self.left, self.right)
        place = np.arange(count)
        inner = self.left != place
        if (
            not count
            or any(part.shape != (count,) for part in parts)
            or self.roots.min() < 0
            or self.roots.max() >= count
            or self.feature.min() < 0
            or self.feature.max() >= len(NAMES)
            or max(self.left.max(), self.right.max()) >= count
            or (self.left < place).any()
            or (self.right < place).any()
            or (self.right == place)[inner].any()
            or not np.isfinite(self.value).all()
        ):
            raise ValueError("it is no forest")


def model_path(cache_dir: Path, target: CpuTarget) -> Path:
    """Where the forest that was trained on this kind of CPU is kept."""
    return cache_dir / "models" / f"{target.cpu}.npz"


def taught_path(target: CpuTarget) -> Path:
    """Where that is which comes with the package for a family of CPUs, if there is one."""
    return _TAUGHT / f"{target.cpu.rstrip('0123456789')}.npz"


def learned(cache_dir: Path, target: CpuTarget) -> Forest | None:
    """What is known of schedules on this kind of CPU: what comes with the package, and what was
    trained here."""
    known = [
        forest
        for path in (taught_path(target), model_path(cache_dir, target))
        if (forest := Forest.load(path)) is not None
    ]
    return functools.reduce(Forest.beside, known) if known else None


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What is expected of schedules of one kernel, in logarithms of time / the default's."""

    mean: np.ndarray
    deviation: np.ndarray

    def gain(self, best: float) -> np.ndarray:
        """By how much each is expected to be below `best`, where nothing is lost if it is not."""
        ahead = (best - self.mean) / self.deviation
        below = (1 + erf(ahead / math.sqrt(2))) / 2
        density = np.exp(-(ahead**2) / 2) / math.sqrt(2 * math.pi)
        return self.deviation * (ahead * below + density)


def beliefs(
    forest: Forest | None, tried: np.ndarray, logs: np.ndarray, others: np.ndarray
) -> Beliefs:
    """What `tried` schedules, which took `logs`, tell of the `others`: rows of differences of
    features from those of the default."""
    every = np.concatenate((np.zeros((1, len(NAMES))), tried, others))
    return explained(predicted(forest, every), every, np.concatenate(([0.0], logs)))


def explained(mean: np.ndarray, points: np.ndarray, logs: np.ndarray) -> Beliefs:
    """What is expected of points for which the `mean` is predicted, where the first of them took
    `logs`: of those that come after them."""
    count = len(logs)
    off = np.minimum(logs, WORST) - mean[:count]
    squares = np.square(points).sum(1)
    apart = squares[:, None] + squares[:count] - 2 * points @ points[:count].T
    best: tuple[float, np.ndarray, np.ndarray] = -math.inf, off, off
    for scale in _SCALES:
        for length in _LENGTHS:
            kernel = scale**2 * np.exp(-apart / (2 * length**2))
            noisy = kernel[:count] + _NOISE**2 * np.eye(count)
            weights = np.linalg.solve(noisy, off)
            likelihood = -(off @ weights + np.linalg.slogdet(noisy)[1]) / 2
            if likelihood > best[0]:
                solved = np.linalg.solve(noisy, kernel[count:].T).T
                left = scale**2 - (kernel[count:] * solved).sum(1)
                best = likelihood, kernel[count:] @ weights, left
    _, correction, variance = best
    return Beliefs(mean[count:] + correction, np.sqrt(np.maximum(variance, 1e-6)))


def predicted(forest: Forest | None, rows: np.ndarray) -> np.ndarray:
    """What is expected before anything was tried: the logarithm of time / the default's."""
    roofline = np.minimum(rows[:, _CYCLES] / 2, WORST)  # half believed: 2x the cycles are 1.4x
    return roofline if forest is None else (roofline + forest.predict(rows)) / 2
