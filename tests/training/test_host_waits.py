"""On a GPU, the host queues kernels without waiting for them."""

from dataclasses import replace

import pytest
import torch
from conftest import GREY
from pretend_gpu import GPU, GPUTensor, PretendGPU, to_pretend_gpu

from ebm_app.ebm import EBM
from ebm_app.likelihood import VariationalBound
from ebm_app.objectives.regression import CTSMm
from ebm_app.sampling.flow import DPMSampler, PFODESampler
from ebm_app.training.ebm_task import TimeScoreLoss

CONFIG = replace(
    GREY, prediction="levels", dequantisation="truncated_normal", input_frequencies=(1.0, 2.0)
)


@pytest.fixture
def gpu_model():
    ebm, gpu = EBM(CONFIG), PretendGPU()
    return to_pretend_gpu(ebm), gpu


def test_a_copy_that_blocks_is_counted(gpu_model):
    _, gpu = gpu_model
    with gpu:
        there = torch.ones(2).to(GPU)
        there.sum().item()
        there[there > 0].cpu()
    assert gpu.waits == {"_to_copy": 2, "_local_scalar_dense": 1, "index": 1}


def test_a_training_step_never_waits(gpu_model):
    ebm, gpu = gpu_model
    x, t = torch.randn(4, 1, 8, 8), torch.linspace(0.1, 0.99, 4, dtype=torch.float64)
    with gpu:
        image, time = GPUTensor(x), GPUTensor(t)
        losses = TimeScoreLoss(ebm.model, CTSMm(stein_factor=1.0))(image, image, time, time)
        losses.mean().backward()
    assert losses.device == GPU and not gpu.waits


@pytest.mark.parametrize("sampler", [PFODESampler, DPMSampler])
def test_waits_of_a_sampler_do_not_grow_with_its_steps(gpu_model, sampler):
    ebm, gpu = gpu_model
    with gpu:
        *_, last = sampler(3).iterate(ebm.density, GPUTensor(torch.randn(2, 1, 8, 8)), None)
    assert last.x.device == GPU
    assert sum(gpu.waits.values()) <= 1


def test_elbo_waits_for_few_copies(gpu_model):
    """Its number of waits does not grow with the nodes."""
    ebm, gpu = gpu_model
    with gpu:
        VariationalBound()(ebm.density, GPUTensor(torch.rand(2, 1, 8, 8)), 0.99)
    assert sum(gpu.waits.values()) <= 9
