"""The estimate of mutual information: normals, discrete columns, copies of rows, warnings."""

import json
import math
from inspect import signature

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import error_of
from exact import generator

from ebm_app import mutual_information
from ebm_app.ratios.mi_tasks import MI_TASKS
from ebm_app.tabular.classifier import ClassifierTraining, stacked_mlp, stacked_weights
from ebm_app.tabular.information import _additions, _doubts
from ebm_app.tabular.mutual_information import Estimation, MISettings
from ebm_app.tabular.pair_classifiers import Fit, PairClassifiers, Pairs
from ebm_app.tabular.rank_columns import prepared, row_groups
from ebm_app.tabular.t_copula import TCopula

SHORT = MISettings(num_members=1, training=ClassifierTraining(steps=100, check_every=50))
MIDDLE = MISettings(num_members=1, training=ClassifierTraining(steps=400))


def data(task="normal_1x1", num=1_000, seed=0):
    return [part.numpy() for part in MI_TASKS[task].draw(num, generator(seed))]


@pytest.mark.parametrize("task", ["normal_1x1", "half_cube_3x3", "student_2x2_df1", "dense_5x5"])
def test_the_interval_holds_the_truth(task):
    found = mutual_information(*data(task, 1_500), SHORT)
    assert abs(found.value - MI_TASKS[task].mutual_information) < 3.5 * found.stderr < 0.35
    assert found.interval[0] == pytest.approx(found.value - 1.96 * found.stderr)
    assert found.nwj <= found.lower_bound and found.num_rows == found.num_distinct == 1_500
    assert len(found.best_steps) == 6 and found.log_ratio.shape == (1_500,)


def test_independent_columns_share_nothing():
    numbers = np.random.default_rng(0)
    found = mutual_information(numbers.random((1_500, 2)), numbers.standard_cauchy(1_500), SHORT)
    assert abs(found.value) < 3.5 * found.stderr < 0.1


def test_a_network_finds_what_the_copula_misses():
    x, y = data("swiss_roll_2x1", 3_000)
    found = mutual_information(x, y, MIDDLE)
    base = mutual_information(x, y, MISettings(training=ClassifierTraining(steps=1)))
    assert base.lower_bound < 0.1 and abs(found.value - 0.413) < 3.5 * found.stderr < 0.3
    assert min(found.best_steps[:2]) > 0


def test_increasing_maps_and_the_order_of_sides_hardly_matter():
    x, y = data(num=1_200)
    found = mutual_information(x, y, SHORT)
    mapped = mutual_information(x**3, np.exp(3 * y), SHORT)
    assert mapped.value == pytest.approx(found.value, abs=found.stderr)
    assert mutual_information(y, x, SHORT).value == pytest.approx(found.value, abs=found.stderr)


def test_discrete_columns_are_found_and_named():
    task = MI_TASKS["discrete_uniform_4"]
    x, y = (part.numpy() for part in task.draw(3_000, generator()))
    table = pd.DataFrame({"kind": x[:, 0]}), pd.Series(y[:, 0])
    found = mutual_information(*table, MIDDLE)
    assert found.discrete == ["'kind'"]
    assert abs(found.neighbours - task.mutual_information) < 0.03
    assert abs(found.value - task.mutual_information) < 0.08
    assert "taken as discrete: 'kind'" in found.summary()


def test_neighbours_say_what_a_learned_ratio_has_missed_of_discrete_columns():
    """Hard edges: where no classifier pays, the bound is short. Half of what neighbours find
    beyond it is added, and half is in the error."""
    task = MI_TASKS["discrete_uniform_4"]
    x, y = (part.numpy() for part in task.draw(3_000, generator(10)))
    untrained = MISettings(num_folds=3, training=ClassifierTraining(steps=1))
    found = mutual_information(x, y, untrained)
    extrapolated = 2 * found.lower_bound - found.fewer_rows  # three folds
    half = (found.neighbours - extrapolated) / 2
    assert half > 0.01 and found.stderr > half
    assert found.value == pytest.approx(extrapolated + half)
    kinds = np.arange(600) % 4
    both = mutual_information(kinds, (kinds + np.arange(600) // 300) % 4, SHORT)
    assert len(both.discrete) == 2 and both.neighbours is None


def test_copies_of_rows_are_one_observation():
    x, y = data(num=600)
    once = mutual_information(x, y, SHORT)
    copies = mutual_information(*(np.tile(part, (4, 1)) for part in (x, y)), SHORT)
    assert (copies.num_rows, copies.num_distinct) == (2_400, 600)
    assert copies.stderr == pytest.approx(once.stderr, rel=0.3)
    assert copies.value == pytest.approx(once.value, abs=2 * once.stderr)
    assert copies.neighbours == pytest.approx(once.neighbours, abs=0.02)
    assert "of 2400 rows 600 are distinct" in copies.summary()
    estimation = Estimation(*(np.tile(part, (4, 1)) for part in (x, y)), SHORT)
    for fit in estimation.classifiers.fits:
        learned, chosen = (set(estimation.groups[rows].tolist()) for rows in fit[2:])
        assert learned and chosen and not learned & chosen


def test_two_discrete_sides():
    numbers = np.random.default_rng(0)
    x = numbers.integers(0, 3, 2_000)
    y = np.where(numbers.random(2_000) < 0.5, x, numbers.integers(0, 3, 2_000))
    p = np.full((3, 3), 1 / 18) + np.eye(3) / 6
    truth = (p * np.log(9 * p)).sum()
    found = mutual_information(x, y, MIDDLE)
    assert found.num_distinct == 2_000 and len(found.discrete) == 2
    assert abs(found.value - truth) < 3.5 * found.stderr < 0.1


@pytest.mark.parametrize("num, dim", [(100, 32), (300, 20)])
def test_many_independent_columns_of_few_rows_share_nothing(num, dim):
    x, y = np.random.default_rng(1).standard_normal((2, num, dim))
    found = mutual_information(x, y, SHORT)
    assert abs(found.value) < 0.3 or found.warnings
    assert abs(found.value) < 1


def test_columns_that_determine_each_other():
    x, noise = np.random.default_rng(2).standard_normal((2, 300))
    found = mutual_information(x, -x, SHORT)
    assert "the normaliser rests on" in found.warnings[0] and found.value > 3
    for side in (np.stack([noise, 2 * noise], 1), np.stack([x + 1, noise, x + noise], 1)):
        message = error_of(mutual_information, x, side, SHORT)
        assert "columns of one side determine each other linearly" in message


def test_the_same_seed_gives_the_same_and_torch_keeps_its_generator():
    x, y = data(num=300)
    before = torch.random.get_rng_state()
    first, again = (mutual_information(x, y, SHORT, random_state=3) for _ in range(2))
    assert first.figures() == again.figures()
    assert mutual_information(x, y, SHORT, random_state=4).value != first.value
    assert torch.equal(before, torch.random.get_rng_state())
    assert json.loads(json.dumps(first.figures())) == first.figures()


def test_progress_and_a_result_before_the_end():
    estimation = Estimation(*data(num=300), SHORT)
    seen = list(estimation.run())
    assert [at.step for at in seen] == [0, 50, 100] and seen[0].num_steps == 100
    assert all(math.isfinite(at.so_far) for at in seen)
    early = Estimation(*data(num=300), SHORT)
    next(early.run())
    assert early.result().best_steps == [0] * 6


def test_the_plot_shows_the_interval():
    found = mutual_information(*data(num=300), SHORT)
    axes = found.plot().axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == "estimate, 95 percent" and "nearest neighbours" in names
    left = axes.patches[0].get_x()
    assert left == pytest.approx(found.interval[0])


GOOD = {
    "value": 1.0,
    "stderr": 0.02,
    "lower_bound": 0.99,
    "nwj": 0.99,
    "mean_log_ratio": 0.99,
    "fewer_rows": 0.98,
    "effective_pairs": 500.0,
    "gain": 0.01,
    "beyond": 0.0,
}


@pytest.mark.parametrize(
    "change, message",
    [
        ({}, None),
        ({"effective_pairs": 99.0}, "the normaliser rests on 99 shuffled pairs"),
        ({"nwj": 0.9}, "the bounds and the mean log ratio lie 0.100 nats apart"),
        ({"mean_log_ratio": 1.2}, "lie 0.210 nats apart"),
        ({"gain": 0.06}, "0.060 nats of the value are extrapolated from 0.980 and 0.990"),
        ({"beyond": 0.05}, "nearest neighbours find 1.050 nats, 0.050 more than the ratios"),
        ({"value": -0.1}, "is below 0 by more than its error"),
    ],
)
def test_what_speaks_against_a_value(change, message):
    numbers = GOOD | change
    found = []
    for part in (_doubts, _additions):
        found += part(**{name: numbers[name] for name in signature(part).parameters})
    assert found == [] if message is None else message in " ".join(found)


def test_warnings_come_first():
    found = mutual_information(*data("sparse_25x25", 400), SHORT)
    assert found.warnings and found.summary().startswith(f"Beware: {found.warnings[0]}")


def test_mistakes_end_in_a_sentence():
    numbers = np.random.default_rng(0)
    x, y = numbers.standard_normal((2, 100))
    frame = pd.DataFrame({"a": x, "b": 1.0})
    for arguments, message in (
        ((x, y[:-1]), "x has 100 rows and y has 99"),
        ((x[:20], y[:20]), "fewer than 30"),
        ((x, x), "hold the same values"),
        ((frame, y), "constant over all rows are 'b'"),
        ((x, np.array(["a"] * 100)), "y holds text"),
        ((np.repeat(x[:20], 5), np.repeat(y[:20], 5)), "20 rows differ from each other"),
    ):
        assert message in error_of(lambda a: mutual_information(*a), arguments)
    assert "give 3 folds" in error_of(MISettings, 2)


def test_a_stack_is_its_networks_one_by_one():
    weights = stacked_weights(3, 5, (7, 4), generator())
    x = torch.randn(3, 6, 5, generator=generator(1))
    together = stacked_mlp(x, weights)
    assert together.shape == (3, 6) and (together == 0).all()  # the last layer begins at 0
    weights[2].normal_(generator=generator(2))
    together = stacked_mlp(x, weights)
    for number in range(3):
        layers = [part for w, b in zip(weights[:3], weights[3:], strict=True) for part in (w, b)]
        values = x[number]
        for layer in range(3):
            values = torch.nn.functional.silu(values) if layer else values
            values = values @ layers[2 * layer][number] + layers[2 * layer + 1][number]
        torch.testing.assert_close(together[number], values[:, 0])


def test_before_training_the_ratio_is_the_copulas():
    x, y = data("sparse_2x2", 200)
    columns = prepared(x), prepared(y)
    scores = np.hstack([side.scores for side in columns])
    copula = TCopula.fit(scores, 2)
    s = torch.from_numpy(copula.quantiles(scores))
    pairs = Pairs(*(torch.from_numpy(side.features).float() for side in columns))
    rows = torch.arange(200)
    fit = Fit(copula, s, rows[:150], rows[150:])
    classifiers = PairClassifiers(pairs, [fit], ClassifierTraining(), generator(), num_members=2)
    torch.testing.assert_close(classifiers.log_ratio(0, rows, rows), copula.log_ratio(s))
    moved = torch.cat([s[:, :2], s.roll(-1, 0)[:, 2:]], 1)
    found = classifiers.log_ratio(0, rows, rows.roll(-1))
    torch.testing.assert_close(found, copula.log_ratio(moved))


def test_columns_as_networks_read_them():
    numbers = np.random.default_rng(0)
    x = np.stack([numbers.standard_normal(100), numbers.integers(0, 3, 100)], 1)
    columns = prepared(x)
    assert columns.discrete == [1] and columns.features.shape == (100, 8)
    np.testing.assert_array_equal(columns.features[:, 5:].argmax(1), x[:, 1])
    assert len(np.unique(columns.untied[:, 1])) == 100
    assert np.array_equal(columns.untied[:, 0], columns.scores[:, 0])
    assert (np.diff(columns.scores[np.argsort(columns.untied[:, 1]), 1]) >= 0).all()
    radius = (columns.scores**2).mean(1) - 1
    np.testing.assert_allclose(columns.features[:, 4], radius)
    groups = row_groups(np.array([[0.0, 2.0], [1.0, 2.0], [0.0, 2.0]]))
    assert groups[0] == groups[2] != groups[1]
    assert len(np.unique(row_groups(x[:, 1:]))) == 100
