"""On a GPU, the host queues kernels without waiting for them, and the loss is one graph."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import GREY
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ebm_app.config import EarlyConfig, LoopConfig
from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.ebm import EBM
from ebm_app.likelihood import make_estimator
from ebm_app.nets.unet import UNetConfig
from ebm_app.objectives.regression import CTSMm
from ebm_app.objectives.time_sampling import ArcLength
from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.flow import DPMSampler, PFODESampler
from ebm_app.training.ebm_task import PathTask, TimeScoreLoss
from ebm_app.utils import random
from ebm_app.utils.random import RowNoise, make_generator
from ebm_app.utils.tensors import copy_to

#: The device of the tensors: torch calls the driver for tensors on "cuda"
GPU = torch.device("meta")


class GPUTensor(torch.Tensor):
    """A tensor on the CPU whose device is ``GPU``."""

    @staticmethod
    def __new__(cls, inner):
        options = {"strides": inner.stride(), "storage_offset": inner.storage_offset()}
        options |= {"dtype": inner.dtype, "requires_grad": inner.requires_grad, "device": GPU}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **options)

    def __init__(self, inner):
        self.inner = inner.detach()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with PretendGPU.current:
            return func(*args, **(kwargs or {}))


class PretendGPU(TorchDispatchMode):
    """Runs kernels of ``GPU`` on the CPU.

    ``waits`` counts blocking copies to and from the GPU, numbers read by the host, and operations
    whose output size depends on the data.
    """

    current = None

    def __init__(self):
        super().__init__()
        self.waits = Counter()
        PretendGPU.current = self

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_gpu = any(isinstance(x, GPUTensor) for x in tensors)
        device, waits = kwargs.get("device"), False
        target = on_gpu if device is None else torch.device(device) == GPU
        if name == "copy_":
            sources = [isinstance(x, GPUTensor) for x in args[:2]]
            waits = sources[0] != sources[1] and not (len(args) > 2 and args[2])
        elif name == "_to_copy":
            waits = target != on_gpu and not kwargs.get("non_blocking")
        elif on_gpu:
            mixed = [x for x in tensors if x.ndim and not isinstance(x, GPUTensor)]
            is_index = name in ("index", "index_put", "index_put_")
            assert is_index or not mixed, f"{func} has tensors on both devices"
            masks = is_index and any(x is not None and x.dtype == torch.bool for x in args[1])
            waits = name in ("_local_scalar_dense", "nonzero", "masked_select") or masks or mixed
        self.waits[name] += bool(waits)

        def unwrap(x):
            if isinstance(x, GPUTensor):
                return x.inner
            return torch.device("cpu") if isinstance(x, torch.device) else x

        def wrap(x):
            return GPUTensor(x) if target and isinstance(x, torch.Tensor) else x

        out = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
        is_in_place = name.endswith("_") or "out" in kwargs
        if is_in_place and isinstance(args[0], torch.Tensor):
            return args[0]
        return tree_map(wrap, out)


def to_pretend_gpu(module):
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                wrapped = GPUTensor(weight.data)
                part._parameters[name] = torch.nn.Parameter(wrapped, weight.requires_grad)
        part._buffers |= {k: GPUTensor(x) for k, x in part._buffers.items() if x is not None}
    return module


LEVELS = {"prediction": "levels", "dequantisation": "truncated_normal"}
CONFIG = replace(GREY, input_frequencies=(1.0, 2.0), **LEVELS)
ATTENTION = UNetConfig((8, 8), norm_num_groups=4, attention_levels=(1,), num_heads=2)
LABELLED = replace(GREY, prediction="moments", num_classes=3)
CONFIGS = {"levels": CONFIG, "early": replace(LABELLED, early=EarlyConfig(ATTENTION))}


@pytest.fixture
def gpu_model(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)
    monkeypatch.setattr(random, "make_generator", lambda _, *seed: make_generator("cpu", *seed))
    gpu = PretendGPU()  # handles the tensors of the model
    return to_pretend_gpu(EBM(CONFIG)), gpu


def test_a_copy_that_blocks_is_counted(gpu_model):
    _, gpu = gpu_model
    with gpu:
        there = torch.ones(2).to(GPU)
        there.sum().item()
        there[there > 0].cpu()
    assert +gpu.waits == {"_to_copy": 2, "_local_scalar_dense": 1, "index": 1}


def test_images_are_copied_from_pinned_memory(gpu_model, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    _, gpu = gpu_model
    with gpu:
        there = copy_to(copy_to(torch.ones(2), GPU), GPU)
    assert there.device == GPU and len(pinned) == 1 and not +gpu.waits
    assert copy_to(pinned[0], torch.device("cpu")) is pinned[0]


@pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_a_training_step_never_waits(gpu_model, augment):
    ebm, gpu = gpu_model
    sampler = ArcLength(ebm.model.path, ebm.config.eps)
    task = SimpleNamespace(model=ebm, config=LoopConfig(), sampler=sampler)
    with gpu:
        levels = GPUTensor(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
        noise = RowNoise(GPU, 0, 0, torch.tensor([1, 3]), 4)
        points = PathTask.points(task, augment()(levels, noise)[0], noise)
        losses = TimeScoreLoss(ebm.model, CTSMm(stein_factor=1.0))(*points)
        losses.mean().backward()
    assert losses.device == GPU and not +gpu.waits


ODE, LIKELIHOOD, HMC = PFODESampler(3), PFODESampler(3, num_probes=1), AnnealedHMC(3)
DRAWS, FLOW = {"num_nodes": 8, "num_draws": 2}, {"num_steps": 3, "max_refinements": 0}


@pytest.mark.parametrize(
    "sampler, most", [(ODE, 1), (LIKELIHOOD, 2), (DPMSampler(3), 0), (HMC, 2 * 3)]
)
def test_waits_of_samplers_do_not_grow_with_steps(gpu_model, sampler, most):
    ebm, gpu = gpu_model
    with gpu:
        *_, last = sampler.iterate(ebm.density, GPUTensor(torch.randn(2, 1, 8, 8)), None)
    assert last.x.device == GPU and sum(gpu.waits.values()) <= most


@pytest.mark.parametrize(
    "name, settings, most",
    [("elbo", DRAWS, 1), ("path_integral", {}, 1), ("time_integral", {}, 0), ("pf_ode", FLOW, 2)],
)
def test_waits_of_likelihoods_do_not_grow_with_nodes(gpu_model, name, settings, most):
    ebm, gpu = gpu_model
    with gpu:
        make_estimator(name, settings)(ebm.density, GPUTensor(torch.randn(2, 1, 8, 8)), 0.99)
    assert sum(gpu.waits.values()) <= most


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_loss_compiles_to_one_graph(config):
    torch.manual_seed(0)
    ebm, generator = EBM(config), torch.Generator().manual_seed(0)
    for weight in ebm.model.parameters():  # the last layers are 0
        torch.nn.init.normal_(weight, std=0.1, generator=generator)
    x, u = torch.randn(2, 4, 1, 8, 8, generator=generator)
    t = torch.tensor([0.1, 0.3, 0.9, 0.99], dtype=torch.float64)
    labels = [torch.tensor([0, 1, -1, 2])] if config.num_classes else []
    loss = TimeScoreLoss(ebm.model, CTSMm(stein_factor=1.0))
    arguments = x, u, t, torch.ones_like(t), None, *labels
    compiled = torch.compile(loss, backend="eager", fullgraph=True)(*arguments)
    torch.testing.assert_close(compiled, loss(*arguments), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()
