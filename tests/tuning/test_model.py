"""The cost model, and the search that it puts in order, on times that are made up."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from click.testing import CliRunner

from hlo_mlc.cli import main
from hlo_mlc.support.errors import UsageError
from hlo_mlc.target.cpu import named
from hlo_mlc.tuning import model
from hlo_mlc.tuning.features import NAMES, VOCABULARY, Description, Features, description_of
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.messages import Timed
from hlo_mlc.tuning.model import (
    Beliefs,
    Forest,
    beliefs,
    learned,
    model_path,
    predicted,
    taught_path,
)
from hlo_mlc.tuning.pool import Pool
from hlo_mlc.tuning.space import Parameter, Space, key_of
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.training import train

TARGET = named("x86-64-v4")
CYCLES = NAMES.index("cycles")
SPACE = Space(tuple(Parameter(n, "a", "x", tuple(range(8)), 3) for n in range(4)))


def stump(feature: int, vocabulary: str = VOCABULARY, most: float = 1.0) -> Forest:
    """A tree that says -`most` where a feature is at most 0, and `most` where it is more; and one
    that always says 3."""
    return Forest(
        roots=np.array([0, 3], np.int32),
        feature=np.array([feature, 0, 0, 0], np.int16),
        threshold=np.zeros(4, np.float32),
        left=np.array([1, 1, 2, 3], np.int32),
        right=np.array([2, 1, 2, 3], np.int32),
        value=np.array([0, -most, most, 3], np.float32),
        vocabulary=np.array(vocabulary),
    )


def rows(*cycles: float) -> np.ndarray:
    found = np.zeros((len(cycles), len(NAMES)), np.float32)
    found[:, CYCLES] = cycles
    return found


def test_a_forest_says_the_mean_of_its_trees() -> None:
    assert stump(CYCLES).predict(rows(-2.0, 0.0, 0.5)).tolist() == [1.0, 1.0, 2.0]


def test_a_forest_is_kept(tmp_path: Path) -> None:
    path = model_path(tmp_path, TARGET)
    assert Forest.load(path) is None
    stump(3).save(path)
    assert np.array_equal(Forest.load(path).predict(rows(1.0)), stump(3).predict(rows(1.0)))
    stump(3, "other").save(path)
    assert Forest.load(path) is None, "of other features"


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "endless", "outside"])
def test_a_damaged_model_is_reported_and_not_used(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "model.npz"
    forest = stump(3)
    if damage == "endless":
        forest.left[1] = 0
    if damage == "outside":
        forest.right[0] = 4
    forest.save(path)
    whole = path.read_bytes()
    if damage in ("cut", "empty", "noise"):
        path.write_bytes({"cut": whole[:-40], "empty": b"", "noise": b"\0" * 100}[damage])
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert Forest.load(path) is None


def test_two_forests_have_as_much_to_say() -> None:
    """One of two trees, which say 1 and 3 where the other's one says -5."""
    other = Forest(
        roots=np.zeros(1, np.int32),
        feature=np.zeros(1, np.int16),
        threshold=np.zeros(1, np.float32),
        left=np.zeros(1, np.int32),
        right=np.zeros(1, np.int32),
        value=np.array([-5], np.float32),
        vocabulary=np.array(VOCABULARY),
    )
    for both in (stump(CYCLES).beside(other), other.beside(stump(CYCLES))):
        both._check()
        assert both.predict(rows(0.0, 0.5)).tolist() == [-2.0, -1.5]


def test_what_comes_with_the_package(tmp_path: Path) -> None:
    target, newer = (replace(TARGET, cpu=f"znver{generation}") for generation in (4, 5))
    taught = Forest.load(taught_path(target))
    assert taught is not None, "python scripts/search_model.py train writes it for these features"
    assert taught_path(newer) == taught_path(target)
    assert learned(tmp_path, named("aarch64")) is None
    points = rows(-0.5, 0.5)
    assert np.array_equal(learned(tmp_path, target).predict(points), taught.predict(points))
    stump(CYCLES).save(model_path(tmp_path, target))
    both = (taught.predict(points) + stump(CYCLES).predict(points)) / 2
    np.testing.assert_allclose(learned(tmp_path, target).predict(points), both, atol=1e-6)


def test_training_is_that_of_the_library() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, len(NAMES))).astype(np.float32)
    y = np.minimum(0.3 * x[:, 3] + np.sin(x[:, 5]), math.log(4))
    forest = Forest.trained(x, y)
    expected = (
        ensemble.ExtraTreesRegressor(
            model._TREES,
            min_samples_leaf=model._SMALLEST_LEAF,
            max_features=model._SHARE_OF_FEATURES,
            random_state=0,
        )
        .fit(x, y)
        .predict(x)
    )
    np.testing.assert_allclose(forest.predict(x), expected, atol=1e-3)


def test_the_default_is_known_and_trials_tell_of_what_is_like_them() -> None:
    others = rows(0.0, 1.0, 1.1, 6.0)
    before = beliefs(stump(3), rows(), np.zeros(0), others)
    after = beliefs(stump(3), rows(1.0), np.array([-0.7]), others)
    assert abs(before.mean[0]) < 0.1
    assert after.mean[1] == pytest.approx(-0.7, abs=0.1)
    assert after.mean[2] == pytest.approx(-0.7, abs=0.15)
    assert after.deviation[2] < before.deviation[2]
    assert after.deviation[3] > after.deviation[2]


def test_the_expected_gain() -> None:
    gains = Beliefs(np.array([0.0, -1.0, 1.0]), np.array([1.0, 1e-3, 1e-3])).gain(0.0)
    assert gains.tolist() == pytest.approx([1 / math.sqrt(2 * math.pi), 1.0, 0.0])


def description(configuration, features: Features) -> Description:
    """Of loops that no other configuration has."""
    return Description(features, str(sorted(configuration.items())))


def describe(configuration) -> Description:
    """Cycles grow with the first value, chains with the second; no one sees the others."""
    first, second, *_ = configuration.values()
    return description(
        configuration, Features(cycles=1000 * 1.2**first, chain=100.0 * second, registers=8)
    )


def pool_of(target, default, describe, forest: Forest | None = None) -> Pool:
    """A pool of which each configuration is described by itself."""
    return Pool(target, default, lambda configurations: list(map(describe, configurations)), forest)


def tried_by(study: KernelStudy, pool: Pool | None, log, least_gain: float = 0.0, most: int = 40):
    """The configurations that a search tries."""
    seen = []
    while len(seen) < most and (trial := study.next(pool, least_gain)) is not None:
        seen.append(dict(trial.configuration))
        study.tell(
            trial,
            Timed(1.0, 1.0, math.exp(-log(trial.configuration))),
            f"{len(seen)}",
            pool and pool.differences(trial.configuration),
        )
    return seen


def in_memory(name: str = "k", space: Space = SPACE) -> KernelStudy:
    return KernelStudy(optuna.storages.InMemoryStorage(), name, space)


def log(configuration) -> float:
    first, second, *_ = configuration.values()
    return 0.1 * (first - 3) + 0.2 * abs(second - 5) - 0.4


def test_the_search_learns_what_makes_schedules_fast() -> None:
    seen = tried_by(in_memory(), pool_of(TARGET, SPACE.default, describe), log, most=24)
    assert seen[0] == SPACE.default
    assert len({key_of(c) for c in seen}) == len(seen)
    assert min(map(log, seen)) == log({"a": 0, "b": 5})
    assert np.mean([log(c) for c in seen[-8:]]) < log(SPACE.default) - 0.2


def test_a_forest_decides_what_comes_first() -> None:
    for most, wanted in (1.0, {0, 1, 2, 3}), (-1.0, {4, 5, 6, 7}):
        forest = stump(NAMES.index("chain"), most=4 * most)
        pool = pool_of(TARGET, SPACE.default, describe, forest)
        _, second = tried_by(in_memory(), pool, log, most=2)
        assert list(second.values())[1] in wanted


def test_it_stops_when_nothing_is_expected_any_more() -> None:
    pool = pool_of(TARGET, SPACE.default, describe)
    seen = tried_by(in_memory(), pool, lambda c: 0.0 if c == SPACE.default else 0.5, 0.002, 200)
    assert 16 <= len(seen) < 60


def test_a_batch_is_chosen_as_if_those_before_took_what_is_expected() -> None:
    """None of a batch is like another one: what one tells of the others need not be tried."""

    def batches() -> list[list[dict]]:
        study, pool = in_memory(), pool_of(TARGET, SPACE.default, describe)
        found = []
        for _ in range(5):
            trials = study.batch(4, pool)
            found.append([dict(trial.configuration) for trial in trials])
            for trial in trials:
                study.tell(trial, Timed(1.0, 1.0, math.exp(-log(trial.configuration))), "")
        return found

    found = batches()
    assert found == batches(), "the same again"
    assert found[0][0] == SPACE.default
    everything = [one for batch in found for one in batch]
    assert len({key_of(one) for one in everything}) == 20
    assert all(len({tuple(one.values())[:2] for one in batch}) == 4 for batch in found[:2])
    assert min(map(log, everything)) <= log({"a": 1, "b": 5})


def test_a_batch_ends_where_nothing_is_expected() -> None:
    pool, study = pool_of(TARGET, SPACE.default, describe), in_memory()
    sizes = []
    while trials := study.batch(7, pool, least_gain=0.002):
        sizes.append(len(trials))
        for trial in trials:
            time = 1.0 if trial.configuration == SPACE.default else math.exp(0.5)
            study.tell(trial, Timed(1.0, time, 1 / time), "")
    assert sizes[:2] == [7, 7] and sum(sizes) < 60 and sizes[-1] < 7


def test_the_last_batch_of_a_space_is_smaller() -> None:
    space = Space((Parameter(0, "a", "x", (0, 1, 2), 1), Parameter(1, "a", "x", (0, 1), 1)))
    for pool in (
        None,
        pool_of(
            TARGET,
            space.default,
            lambda c: Description(Features(cycles=1000.0 + sum(c.values())), str(c)),
        ),
    ):
        study = in_memory(space=space)
        sizes = []
        while trials := study.batch(4, pool):
            sizes.append(len(trials))
            for trial in trials:
                study.tell(trial, Timed(1.0, 1.0, 1.0), "")
        assert sizes == [4, 2]


def test_what_cannot_win_is_not_tried() -> None:
    def hopeless(configuration) -> Description:
        first = next(iter(configuration.values()))
        slow, spilled = first in (0, 1), first in (6, 7)
        return description(
            configuration,
            Features(cycles=1000 * 1.2**first * (1 + 9 * slow), spilled=40.0 * spilled),
        )

    seen = tried_by(in_memory(), pool_of(TARGET, SPACE.default, hopeless), log)
    assert {next(iter(c.values())) for c in seen} <= {2, 3, 4, 5}


def test_small_spaces_are_gone_through_but_for_what_is_hopeless() -> None:
    space = Space((Parameter(0, "a", "x", (0, 1, 2, 3), 1), Parameter(0, "a", "y", (0, 1), 0)))

    def slow(configuration) -> Description:
        return description(
            configuration, Features(cycles=1e3 if configuration["0.a.x"] < 3 else 1e5)
        )

    seen = tried_by(in_memory(space=space), pool_of(TARGET, space.default, slow), lambda c: 0.1)
    assert len(seen) == space.size - 2
    assert not any(c["0.a.x"] == 3 for c in seen)


def test_of_candidates_with_the_same_loops_one_is_tried() -> None:
    def describe(configuration) -> Description:
        first, second, *_ = configuration.values()
        return Description(Features(cycles=1000 + first * second), f"{first} {second}")

    for space in (SPACE, Space(SPACE.parameters[:3])):
        study = in_memory(space=space)
        seen = tried_by(study, pool_of(TARGET, space.default, describe), lambda c: 0.1, most=100)
        again = tried_by(study, pool_of(TARGET, space.default, describe), lambda c: 0.1, most=100)
        assert 40 < len({tuple(c.values())[:2] for c in (*seen, *again)}) == len(seen) + len(again)


def test_without_features_the_sampler_goes_on_alone() -> None:
    pool = pool_of(TARGET, SPACE.default, lambda configuration: None)
    assert tried_by(in_memory(), pool, log) == tried_by(in_memory(), None, log)


def test_a_real_kernel(product) -> None:
    """A made-up machine, on which misses cost more than the roofline says."""
    generator = TemplateGenerator()
    space = generator.space(product, TARGET)

    def describe(configuration) -> Description:
        return description_of(
            generator.loops(product, TARGET, space.schedules(configuration)), TARGET
        )

    default = describe(space.default).features.vector

    def time(configuration) -> float:
        vector = describe(configuration).features.vector
        difference = dict(zip(NAMES, vector - default, strict=True))
        return 0.6 * difference["cycles"] + 0.2 * difference["l1_bytes"]

    rng = random.Random(1)
    chance = sorted(time(space.anything(rng)) for _ in range(400))
    seen = tried_by(in_memory(space=space), pool_of(TARGET, space.default, describe), time, most=24)
    assert min(map(time, seen)) <= chance[4], "no better than 1 % of what chance finds"


def test_training_on_what_was_tuned(tmp_path: Path) -> None:
    journal = tmp_path / "journal.log"
    with pytest.raises(UsageError, match="there are 0 of 0"):
        train(journal, TARGET)
    for kernel in range(4):
        study = KernelStudy(open_storage(journal), f"k{kernel}", SPACE)
        study.describe({"target": f"{TARGET.cpu}, 2 cores"})
        tried_by(study, pool_of(TARGET, SPACE.default, describe), log, most=30)
    with pytest.raises(UsageError, match="there are 0 of 0"):
        train(journal, named("aarch64"))
    pytest.importorskip("sklearn")
    trained = train(journal, TARGET)
    assert (trained.kernels, trained.trials) == (4, 120)
    good, bad = ({"a": a, "b": b, "c": 0, "d": 0} for a, b in ((0, 5), (7, 0)))
    pool = pool_of(TARGET, SPACE.default, describe)
    differences = np.array([pool.differences(c) for c in (good, bad)])
    fast, slow = predicted(trained.forest, differences)
    assert fast < slow


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    result = CliRunner().invoke(main, ["model", "train"])
    assert result.exit_code == 2
    assert "tune more" in result.output
