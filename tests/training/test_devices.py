"""GPUs: the host never waits in a step, the loss is one graph, figures agree with a CPU."""

from dataclasses import replace

import pytest
import torch
from conftest import GREY, TINY, load_script
from exact import noise_of
from torch.utils._python_dispatch import TorchDispatchMode

from ebm_app.data.augmentation import AUGMENTATIONS
from ebm_app.ebm import EBM
from ebm_app.likelihood import make_estimator
from ebm_app.nets.unet import UNetConfig
from ebm_app.objectives.regression import CTSMv
from ebm_app.objectives.time_sampling import ArcLength
from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.samplers import DPMSampler, ProbabilityFlowSampler
from ebm_app.training.batches import Batches
from ebm_app.training.loop import Loss
from ebm_app.utils import random
from ebm_app.utils.random import BatchNoise, make_generator
from ebm_app.utils.tensors import copy_to

#: Stands for a GPU: kernels whose output size depends on the data fail on it
GPU = torch.device("meta")


class HostWaits(TorchDispatchMode):
    """Counts numbers that the host reads from the GPU, and copies that block.

    ``any()`` is 0 and other numbers are 1, so that all values count as finite.
    """

    def __init__(self):
        super().__init__()
        self.num, self.last = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.overloadpacket.__name__
        if name == "_local_scalar_dense" and args[0].device == GPU:
            self.num += 1
            return float(self.last != "any")
        self.last = name
        if name == "_to_copy":
            source, target = args[0].device, torch.device(kwargs.get("device") or args[0].device)
            self.num += source != target and not kwargs.get("non_blocking")
            if source == GPU != target:
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        elif name == "copy_":
            self.num += args[0].device != args[1].device and True not in args[2:]
        elif name == "index":
            self.num += any(x is not None and x.device != args[0].device for x in args[1])
        return func(*args, **kwargs)


LEVELS = {"prediction": "levels", "dequantisation": "truncated_normal"}
CONFIG = replace(GREY, input_frequencies=(1.0, 2.0), **LEVELS)
ATTENTION = UNetConfig((8, 8), norm_num_groups=4, attention_levels=(1,), num_heads=2)
LABELLED = replace(GREY, prediction="moments", num_classes=3, net=ATTENTION)
CONFIGS = {"levels": CONFIG, "labelled": LABELLED}


@pytest.fixture
def ebm(monkeypatch):
    """A model on the GPU. Random numbers are drawn on the CPU."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x)
    monkeypatch.setattr(random, "make_generator", lambda _, *seed: make_generator("cpu", *seed))
    return EBM(CONFIG).to(GPU)


def test_synchronisations_are_counted():
    with HostWaits() as waits:
        there = torch.ones(2).to(GPU)
        assert there.sum().item() and there.cpu().shape == there.shape
        there.copy_(torch.zeros(2))
        there[torch.tensor([0])]
        with pytest.raises(NotImplementedError):  # by torch, on meta tensors
            there[there > 0]
    assert waits.num == 5


def test_images_are_copied_from_pinned_memory(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    with HostWaits() as waits:
        there = copy_to(copy_to(torch.ones(2), GPU), GPU)
    assert there.device == GPU and len(pinned) == 1 and not waits.num
    assert copy_to(pinned[0], torch.device("cpu")) is pinned[0]


@pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_training_step_does_not_synchronise(ebm, augment):
    levels, sampler = torch.zeros(9, 1, 8, 8, dtype=torch.uint8), ArcLength(ebm.model.path, 1e-4)
    batches = Batches(ebm, levels, sampler, 4, 0, augment())
    loss = Loss(ebm.model, CTSMv(stein_factor=1.0, divergence="poisson"))
    with HostWaits() as waits:
        u0, u1, t, weight, _ = batches.batch(1, torch.tensor([1, 3]))
        losses = loss(u0, u1, t, weight)
        losses.mean().backward()
    assert losses.device == GPU and not waits.num


# HMC reads two numbers per temperature, and the mean moves of both halves at the end
ODE, HMC = ProbabilityFlowSampler(3), AnnealedHMC(3)
DRAWS, FLOW = {"num_nodes": 8, "num_draws": 2}, {"num_steps": 3, "max_refinements": 0}


@pytest.mark.parametrize("sampler, most", [(ODE, 1), (DPMSampler(3), 0), (HMC, 2 * 3 + 2)])
def test_synchronisations_do_not_grow_with_steps(ebm, sampler, most):
    with HostWaits() as waits:
        *_, last = sampler.iterate(
            ebm.model, torch.zeros(2, 1, 8, 8, device=GPU), BatchNoise(None)
        )
    assert last.x.device == GPU and waits.num <= most


@pytest.mark.parametrize(
    "name, settings, most",
    [
        ("elbo", DRAWS, 1),
        ("path_integral", {}, 1),
        ("time_integral", {}, 0),
        ("probability_flow", FLOW, 2),
    ],
)
def test_synchronisations_do_not_grow_with_nodes(ebm, name, settings, most):
    with HostWaits() as waits:
        x = torch.zeros(2, 1, 8, 8, device=GPU)
        make_estimator(name, settings)(ebm.model, x, 0.99, noise_of(x))
    assert waits.num <= most


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_loss_compiles_to_one_graph(config):
    torch.manual_seed(0)
    ebm, generator = EBM(config), torch.Generator().manual_seed(0)
    for weight in ebm.model.parameters():  # the last layers are 0
        torch.nn.init.normal_(weight, std=0.1, generator=generator)
    x, u = torch.randn(2, 4, 1, 8, 8, generator=generator)
    t = torch.tensor([0.1, 0.3, 0.9, 0.99], dtype=torch.float64)
    labels = [torch.tensor([0, 1, -1, 2])] if config.num_classes else []
    loss = Loss(ebm.model, CTSMv(stein_factor=1.0, divergence="poisson"))
    arguments = x, u, t, torch.ones_like(t), None, *labels
    compiled = torch.compile(loss, backend="eager", fullgraph=True)(*arguments)
    torch.testing.assert_close(compiled, loss(*arguments), rtol=1e-4, atol=1e-4)
    torch._dynamo.reset()


def metrics_of(script, *words):
    return load_script(script).main([str(word) for word in words])


@pytest.mark.gpu
def test_gpu_agrees_with_cpu(tmp_path):
    bits = {}
    for device in ("cpu", "cuda"):
        run, last = tmp_path / device, ["--device", device]
        train = [*TINY, *last, "--max_train_steps", "2", "--output_dir", run]
        metrics = metrics_of("train/ebm.py", *train)
        estimators = ["--estimator", "all", "--limit", "2", "--repeats", "1"]
        rows = metrics_of("evaluate/bpd.py", tmp_path / "cpu", *estimators, *last)["estimators"]
        sample = ["--sampler", "annealed_hmc", "--num_images", "2", "--num_steps", "1", *last]
        metrics_of("sample/ebm.py", tmp_path / "cpu", *sample, "--output_dir", run / "samples")
        bits[device] = [metrics["bits_per_dim"], *(row["bits_per_dim"] for row in rows.values())]
        assert (run / "samples" / "00001.png").is_file()
    assert bits["cuda"] == pytest.approx(bits["cpu"], abs=1e-3)
