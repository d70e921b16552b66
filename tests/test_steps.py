"""What a training step is made of by its number: its batch and its learning rate."""

from dataclasses import replace

import torch
from exact import generator

from ebm_app.data.augmentation import Affine
from ebm_app.likelihood.dequantisation import UniformDequantisation
from ebm_app.models.config import LoopConfig
from ebm_app.objectives.time_sampling import ArcLength
from ebm_app.paths import LinearVPPath
from ebm_app.spaces import PixelSpace
from ebm_app.training.batches import EBMBatches
from ebm_app.training.learning_rate import OPEN_ENDED, open_ended_factor


def test_a_batch_is_a_function_of_seed_and_step():
    levels = torch.randint(17, (20, 1, 8, 8), generator=generator(), dtype=torch.uint8)
    sampler = ArcLength(LinearVPPath(), 1e-4)
    parts = (17, PixelSpace(), UniformDequantisation(), sampler, Affine())
    source, again = (EBMBatches(levels, *parts, 8, seed=3) for _ in range(2))
    for step in (5, 2):
        for a, b in zip(source.batch(step), again.batch(step), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(source.batch(1)[0], source.batch(2)[0])
    # 20 images: steps 0..4 of 8 are two whole epochs
    seen = torch.cat([source.indices(step) for step in range(5)])
    assert torch.equal(seen[:20].sort().values, torch.arange(20))
    assert torch.equal(seen[20:].sort().values, torch.arange(20))
    assert not torch.equal(seen[:20], seen[20:])


def test_an_open_ended_rate_rises_stays_and_falls():
    config = LoopConfig(
        lr_scheduler=OPEN_ENDED, lr_warmup_steps=4, lr_decay_steps=5, max_train_steps=20
    )
    factors = [open_ended_factor(config, step) for step in range(21)]
    assert factors[:5] == [0.0, 0.25, 0.5, 0.75, 1.0] and set(factors[4:16]) == {1.0}
    assert factors[15:] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    assert open_ended_factor(replace(config, lr_warmup_steps=0, lr_decay_steps=0), 0) == 1.0
