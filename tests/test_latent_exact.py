"""Where the flow is the true model, an energy model in its latent space has nothing to add."""

import math

import pytest
import torch
from accelerate import Accelerator
from exact import generator

from ebm_app.data.images import ImageData
from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow, FlowConfig
from ebm_app.likelihood.dequantisation import dequantisation_noise
from ebm_app.numerics.tensors import standard_error
from ebm_app.training.settings import resolve
from ebm_app.training.tasks import EBMTask
from ebm_app.training.trainer import Trainer

SHAPE, LEVELS, SEEDS = (1, 4, 4), 256, 3
GIVEN = {
    "block_out_channels": (16, 16),
    "norm_num_groups": 4,
    "num_nodes": 24,
    "max_train_steps": 1500,
    "train_batch_size": 128,
    "validation_steps": 1500,
    "validation_images": 50,
    "validation_repeats": 1,
    "num_preview_images": 0,
    "checkpointing_steps": 1500,
    "lr_warmup_steps": 20,
    "ema_decay": 0.995,
    "eps": 1e-5,
}


def gaussian_flow():
    """A flow fitted to pixels whose logits are one correlated normal, far from black and white."""
    flow = Flow(FlowConfig("test", SHAPE, LEVELS, "gaussian"))
    walk = torch.randn((4000, 16), generator=generator(), dtype=torch.float64).cumsum(1) / 4
    flow.space.fit(torch.sigmoid(walk).view(-1, *SHAPE))
    return flow


def draws(flow, num, seed):
    images = flow.sample(num, seed)
    return (images * (LEVELS - 1)).round().to(torch.uint8)


@pytest.mark.slow
def test_the_correction_of_a_true_flow_is_zero_within_its_error(tmp_path):
    flow = gaussian_flow()
    data = ImageData("test", LEVELS, draws(flow, 4000, 1), draws(flow, 50, 2), draws(flow, 500, 3))
    noise = dequantisation_noise(1, data.test, 0)
    corrections = []
    for seed in range(SEEDS):
        ebm_config, config = resolve(data, {**GIVEN, "seed": seed}, None, flow)
        folder = tmp_path / str(seed)
        folder.mkdir()
        accelerator = Accelerator(cpu=True)
        task = EBMTask(accelerator, ebm_config, config, data, folder, flow)
        Trainer(accelerator, task, config, folder).fit()
        models = (EBM.from_pretrained(folder), flow)
        found, own = (model.log_prob(data.test, noise=noise).log_prob for model in models)
        corrections.append((found - own).mean() / math.log(2) / 16)
    corrections = torch.stack(corrections)
    print("correction, bits per dim:", corrections.mean().item(), standard_error(corrections))
    assert corrections.abs().max() < 0.02
    assert corrections.mean().abs() < 3 * standard_error(corrections)
