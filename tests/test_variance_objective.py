"""Training the variance alone, which finishes a model."""

from dataclasses import replace

import pytest
import torch
from test_training import NET, trainer

from ebm_app.data.images import load_images
from ebm_app.ebm import EBM
from ebm_app.errors import UserError
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
