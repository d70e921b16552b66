"""Log-ratio estimators on stacks: what they compute, against closed forms."""

import math

import pytest
import torch
from exact import F64, ExactModel, generator, normal

from ebm_app.numerics import seeded
from ebm_app.objectives.regression import ctsm
from ebm_app.objectives.time_sampling import SharedTimes, Stratified, TimeSample
from ebm_app.paths import LinearVPPath, SchrodingerBridgePath
from ebm_app.ratios.data.mi_distributions import BlockGaussian
from ebm_app.ratios.data.pairs import GaussianPair, JointPair, MixturePair
from ebm_app.ratios.methods import (
    Classifiers,
    CovarianceScores,
    MixtureResidual,
    TimeScores,
    seeded_mlp,
)
from ebm_app.ratios.nets import Stack
from ebm_app.ratios.stacks import Draw, RotatedRatio, TelescopingRatio, TimeScoreRatio, point
from ebm_app.ratios.studies.study import Points
from ebm_app.ratios.training import RatioTrainer, RatioTraining, draw


class Exact(ExactModel):
    """The exact time score of N(shift, I), two members alike."""

    class Net(Stack):
        def forward(self, x, t):
            raise NotImplementedError

    def __init__(self, dim, shift):
        super().__init__(LinearVPPath(), 1e-5, torch.full((1, dim), shift), (1.0,))
        self.net = self.Net(torch.zeros(2, 1))


def test_the_time_integral_of_the_exact_time_score_is_the_log_ratio():
    pair = GaussianPair(5, 2.0)
    ratio = TimeScoreRatio(Exact(5, 2.0), ctsm())
    x = normal((30, 5)) + 1.0
    careful, nfe = ratio.exact_log_ratio(x)
    for found in (ratio.log_ratio(x), careful):
        assert found.shape == (2, 30) and found.dtype == F64
        # the model stops at 1 - 1e-5
        assert torch.allclose(found, pair.log_ratio(x).expand(2, -1), rtol=0, atol=2e-3)
    assert nfe > 20


@pytest.mark.parametrize("num_bridges", [1, 3])
def test_the_best_logits_are_the_log_ratios_of_neighbours(num_bridges):
    """At the exact logits the loss is stationary: its mean gradient in any direction is zero."""
    pair, path, num = GaussianPair(2, 1.0), LinearVPPath(), 200_000

    class Logits(Stack):
        def forward(self, x, t):
            t = torch.linspace(0, 1, num_bridges + 1, dtype=F64)
            log_density = -0.5 * (x[:, None] - t[:, None]).square().sum(2)
            exact = log_density[:, 1:] - log_density[:, :-1]
            return exact + self.weights[:, :1] * x[:, :1] + self.weights[:, 1:]

    net = Logits(torch.zeros(1, 2, dtype=F64))
    ratio = TelescopingRatio(net, path, num_bridges)
    times = TimeSample(torch.zeros(num, dtype=F64), torch.ones(num, dtype=F64))
    g = generator(1)
    x0, x1 = (pair.sample0(num, g).double(), pair.sample1(num, g).double())
    losses = ratio.loss(Draw(x0, x1, x0, times)).view(100, -1).mean(1)
    gradients = torch.stack(
        [torch.autograd.grad(loss, net.weights, retain_graph=True)[0][0] for loss in losses]
    )
    assert (gradients.mean(0) / (gradients.std(0) / 10)).abs().max() < 4
    x = normal((9, 2))
    assert torch.allclose(ratio.log_ratio(x)[0], pair.log_ratio(x))


def test_rotated_estimators_see_rotated_points():
    axes = torch.linalg.qr(normal((3, 3)))[0]
    inner = TimeScoreRatio(Exact(3, 1.0), ctsm())
    ratio, x = RotatedRatio(inner, axes), normal((6, 3))
    assert torch.equal(ratio.log_ratio(x), inner.log_ratio(x @ axes))
    assert torch.equal(ratio.exact_log_ratio(x)[0], inner.exact_log_ratio(x @ axes)[0])
    path, t = LinearVPPath(), torch.full((6,), 0.4, dtype=F64)
    sample = point(path, Draw(x, 2 * x, x, TimeSample(t, t)), t)
    turned = point(path, Draw(x @ axes, 2 * x @ axes, x @ axes, TimeSample(t, t)), t)
    assert torch.allclose(sample.xt @ axes, turned.xt)
    assert ratio.stack is inner.stack


def test_a_bridge_takes_the_noise_of_the_draw():
    x, t = normal((6, 3)), torch.full((6,), 0.25, dtype=F64)
    drawn = Draw(x, x, 2 * x, TimeSample(t, t))
    assert torch.allclose(
        point(SchrodingerBridgePath(1.0), drawn, t).xt, x + math.sqrt(3 / 16) * 2 * x
    )


METHODS = {
    "tsm": TimeScores(objective="tsm", weighting="stein_score"),
    "ctsm": TimeScores(objective="ctsm", moment="data"),
    "ctsm_v": TimeScores(ema_decay=0.9),
    "bridge": TimeScores(1.0),
    "mixture": MixtureResidual(fit_draws=500),
    "nce": Classifiers(),
    "tre": Classifiers(num_bridges=3),
    "matrix": CovarianceScores(num_times=4),
}


@pytest.fixture
def float64():
    """Adam's first steps go by the signs of gradients, which rounding can turn."""
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(torch.float32)


def trainer(method, seeds, rates, iterations=6):
    pair = JointPair(BlockGaussian(4)) if method is METHODS["matrix"] else GaussianPair(3, 1.5)
    training = RatioTraining(iterations, 16, eval_every=4)
    points = Points(pair, 64, generator(5))
    return RatioTrainer(method, pair, seeds, torch.tensor(rates), training, points.criterion)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.usefixtures("float64")
def test_members_learn_the_same_side_by_side_and_alone(method):
    together = trainer(method, [0, 0], [1e-3, 1e-2])
    evaluations = list(together.run())
    assert [e.step for e in evaluations] == [0, 4, 6]
    for member, rate in enumerate((1e-3, 1e-2)):
        alone = trainer(method, [0], [rate])
        last = list(alone.run())[-1]
        assert torch.allclose(
            alone.ratio.stack.weights[0], together.ratio.stack.weights[member], atol=1e-9
        )
        error = evaluations[-1].figures["error"][member]
        assert last.figures["error"][0].item() == pytest.approx(error.item(), rel=1e-6)
    weights = together.ratio.stack.weights
    assert not torch.allclose(weights[0], weights[1], atol=1e-6)


def test_seeds_differ_in_weights_and_draws_and_the_best_weights_are_kept():
    both = trainer(METHODS["ctsm_v"], [0, 1], [1e-2, 1e-2])
    first = both.draw()
    half = len(first.x0) // 2
    assert not torch.equal(first.x0[:half], first.x0[half:])
    both = trainer(METHODS["ctsm_v"], [0, 1], [1e-2, 1e-2])
    errors = torch.stack([e.figures["error"] for e in both.run()])
    assert torch.equal(both.best_error, errors.min(0).values)
    assert both.best_step.tolist() == [[0, 4, 6][i] for i in errors.argmin(0)]
    now = both.ratio.stack.weights.clone()
    with both.best_weights() as ratio:
        again = both.criterion(ratio)["error"]
    assert torch.allclose(again, both.best_error) and torch.equal(now, ratio.stack.weights)


def test_a_diverged_run_keeps_what_it_began_with():
    run = trainer(METHODS["ctsm"], [0], [1e30], iterations=8)
    *_, last = run.run()
    assert not last.figures["error"].isfinite().all()
    assert run.best_step.item() == 0 and run.best_error.isfinite().all()


def test_the_residual_starts_as_its_mixtures():
    """Gaussians of matched moments, where the truth is Gaussian: near the exact log ratio."""
    pair = GaussianPair(4, 3.0)
    ratio = MixtureResidual(fit_draws=20_000).build(pair, [0], "cpu")
    points = Points(pair, 200, generator(2))
    error = points.criterion(ratio)["error"].item()
    assert error < 0.1 < points.truth.square().mean()
    mixtures = MixtureResidual(1.0, fit_draws=20_000).build(MixturePair(2.0, 4), [0], "cpu")
    points = Points(MixturePair(2.0, 4), 200, generator(2))
    assert points.criterion(mixtures)["error"].item() < 1 < points.truth.square().mean()


def test_a_short_training_learns_the_gaussians():
    run = trainer(TimeScores(), [0], [3e-3], iterations=400)
    errors = [e.figures["error"].item() for e in run.run()]
    assert min(errors) < 0.1 * errors[0]


def test_networks_depend_on_their_seed_alone():
    torch.manual_seed(1)
    one = seeded_mlp(3, 2, 5)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    two, other = seeded_mlp(3, 2, 5), seeded_mlp(3, 2, 6)
    for a, b, c in zip(one.parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b) and not torch.equal(a, c)
    assert torch.equal(state, torch.random.get_rng_state())


def test_shared_times_come_in_equal_runs():
    base = Stratified(LinearVPPath(), 1e-3)
    shared = SharedTimes(base, 4)
    t, weight = shared.sample(12, generator())
    expected = base.sample(4, generator())
    assert torch.equal(t, expected.t.repeat_interleave(3)) and weight.shape == (12,)
    with pytest.raises(ValueError, match="cannot be shared evenly"):
        shared.sample(10, generator())


def test_points_are_half_of_either_density_and_judge_by_both_figures():
    pair = JointPair(BlockGaussian(4))
    points = Points(pair, 40_001, generator(3))
    assert points.x.shape == (40_001, 4) and points.half == 20_000
    figures = points.figures(points.truth[None] + 0.5)
    assert figures["error"].item() == pytest.approx(0.25)
    error = points.truth[-20_000:].std().item() / math.sqrt(20_000)
    assert abs(figures["divergence"].item() - 0.5 - 1.0) < 4 * error  # D/4 nats


def test_draws_are_those_of_their_generator():
    pair, times = GaussianPair(2), Stratified(LinearVPPath(), 1e-3).sample
    one, two = (draw(pair, times, 5, seeded("cpu", 1, 2)) for _ in range(2))
    other = draw(pair, times, 5, seeded("cpu", 1, 3))
    assert torch.equal(one.x1, two.x1) and torch.equal(one.times.t, two.times.t)
    assert not torch.equal(one.x1, other.x1) and not torch.equal(one.x0, one.noise)
