"""Training the variance alone, which finishes a model."""

from dataclasses import replace

import pytest
import torch
from exact import generator
from test_training import NET, trainer

from ebm_app.data.images import ImageData, load_images
from ebm_app.data.levels import dequantise
from ebm_app.image_models.ebm import EBM
from ebm_app.io.errors import UserError
from ebm_app.objectives.time_sampling import ArcLength
from ebm_app.training.settings import resolve


def test_the_variance_alone_leaves_the_rest_of_a_model_as_it_is(tmp_path):
    """Also what its average holds, and without dropout."""
    data = load_images("digits")
    run = trainer(
        data,
        tmp_path / "run",
        replace(NET, dropout=0.2),
        objective="variance",
        adam_weight_decay=0.0,
        learning_rate=0.1,
        max_train_steps=3,
    )
    before = {name: value.clone() for name, value in run.task.model.state_dict().items()}
    x, t = torch.randn(4, 1, 8, 8), torch.full((4,), 0.7, dtype=torch.float64)
    score = run.task.model.model(x, t).score
    run.fit()
    model = EBM.from_pretrained(tmp_path / "run")
    for state in (run.task.model.state_dict(), model.state_dict()):
        changed = {name for name, value in state.items() if not torch.equal(value, before[name])}
        assert changed == {f"model.net.unet.conv_out.{part}" for part in ("weight", "bias")}
    found = model.model(x, t)
    run.task.model.train()
    assert torch.equal(run.task.model.model(x, t).score, score)  # in training too: no dropout
    assert torch.allclose(found.score, score, atol=1e-6)
    assert (found.variance - 1).abs().mean() > 0.05
    with pytest.raises(UserError, match="give --adam_weight_decay 0"):
        resolve(data, {"objective": "variance", "adam_weight_decay": 0.1})


def test_the_variance_alone_learns_the_sum_of_the_squared_residuals(tmp_path):
    """Over the times of the training, by the weights of the loss, with a head that says nothing:
    there w = 1 would be too much."""
    levels = torch.full((20, 1, 4, 4), 8, dtype=torch.uint8)
    run = trainer(
        ImageData("noise", 17, levels, levels, levels),
        tmp_path / "run",
        eps=1e-2,
        objective="variance",
        learning_rate=0.03,
        train_batch_size=32,
        max_train_steps=60,
        validation_steps=60,
    )
    run.fit()
    model, path = run.task.model.eval().model, run.task.model.model.path
    t = ArcLength(path, 1e-2).sample(2000, generator()).t
    levels = torch.full((2000, 1, 4, 4), 8, dtype=torch.uint8)
    x1 = dequantise(levels, 17, torch.rand(levels.shape, generator=generator()))
    sample = path.sample(torch.randn(2000, 1, 4, 4, generator=generator(1)), 2 * x1 - 1, t)
    with torch.no_grad():
        found = model(sample.xt, t)
    weight = path.variance_gain(t).square() / path.time_score_variance(t)
    r2 = (path.conditional_score(sample) - found.score) / path.score_gain(t)[:, None, None, None]
    means = [(weight * part.flatten(1).mean(1)).mean() for part in (found.variance, r2.square())]
    assert means[0] == pytest.approx(means[1].item(), rel=0.1)
    assert means[1] < 0.8 * weight.mean()
