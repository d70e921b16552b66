"""What is timed: training steps, ways to integrate the time score, fields of a leapfrog step."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ebm_app.data.images import ImageData
from ebm_app.io.processes import make_accelerator
from ebm_app.models.config import EBMConfig, TrainingConfig
from ebm_app.models.energy import HEAD, LogRatio, TimeScoreEnergy
from ebm_app.models.parametrisation import default_prediction
from ebm_app.numerics.quadrature import integrate
from ebm_app.paths.schedules import ARC_LENGTH
from ebm_app.training.tasks import EBMTask
from ebm_app.training.trainer import Trainer

Action = Callable[[], object]
#: ways to integrate, and the nodes of the value that they are compared with
NODES, SOLVES, REFERENCE = (8, 12, 16, 24, 32, 48, 64, 96, 128), (1e-3, 1e-4, 1e-5, 1e-6), 192
#: (rtol, atol) of the paper's AIS (appendix F.6) and of its likelihoods
TOLERANCES = {"ode 1e-3/1e-6": (1e-3, 1e-6), "ode 1e-6/1e-6": (1e-6, 1e-6)}
FIELD_NODES = (4, 12)


@dataclass(frozen=True)
class Steps:
    """Whole training steps (draw, loss, backward, update, average) of models that differ in their
    objective only.

    Args:
        config: of the model; its condition is left out. batch_size: images of a step.
        space: state of the model's space. device: "cpu" or "cuda".
    """

    config: EBMConfig
    batch_size: int
    space: dict[str, Tensor]
    device: str = "cpu"

    def trainer(self, objective: str, stein_head: bool = False) -> Trainer:
        """A run that is never begun: its steps are taken one by one.

        Args:
            objective: a key of ``OBJECTIVES``. stein_head: whether the network has that head too,
                and predicts moments.
        """
        ebm_config = replace(
            self.config,
            stein_head=stein_head,
            prediction=default_prediction(stein_head),
            condition_dim=0,
        )
        config = TrainingConfig(
            train_batch_size=self.batch_size, objective=objective, stein_factor=float(stein_head)
        )
        accelerator = make_accelerator(device=self.device)
        folder = Path()  # nothing is written before a run begins
        task = EBMTask(accelerator, ebm_config, config, self.images(), folder)
        task.model.space.load_state_dict(self.space)
        return Trainer(accelerator, task, config, folder)

    def images(self) -> ImageData:
        """Random images of the model's form: what a step costs does not depend on them."""
        shape, levels = self.config.image_shape, self.config.num_levels
        pixels = torch.randint(levels, (2 * self.batch_size, *shape), dtype=torch.uint8)
        return ImageData("random", levels, pixels, pixels[:2], pixels[:2])


def bare_network(trainer: Trainer) -> Action:
    """Forward and backward pass of a trainer's network on the input of one of its steps, and
    nothing else."""
    net, seen = trainer.task.model.model.net, []
    hook = net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    trainer.train_step()
    hook.remove()
    inputs = [part.detach() for part in seen[0]]

    def step() -> None:
        net(*inputs).square().mean().backward()
        net.zero_grad()

    return step


class Integration(NamedTuple):
    """A way to integrate: its name, evaluations of the network, and the largest distance over
    images of the log ratio to that by ``REFERENCE`` nodes, in bits per dim."""

    name: str
    nfe: int
    error: float


def integrations(
    energy: TimeScoreEnergy,
    x: Tensor,
    nodes: tuple[int, ...] = NODES,
    tolerances: tuple[float, ...] = SOLVES,
) -> tuple[list[Integration], list[Integration]]:
    """Log ratios of points x (B, *): by Gauss-Legendre rules, and by SciPy's RK45, the paper's
    protocol, rtol and atol being equal."""
    truth = energy.with_nodes(REFERENCE).log_ratio(x).value

    def measured(name: str, found: LogRatio) -> Integration:
        error = (found.value - truth).abs().max().item() / (x[0].numel() * log(2))
        return Integration(name, found.nfe, error)

    rules = [measured(f"{num} nodes", energy.with_nodes(num).log_ratio(x)) for num in nodes]
    solves = [
        measured(f"rk45 at {e:g}", energy.log_ratio(x, integrator="rk45", rtol=e, atol=e))
        for e in tolerances
    ]
    return rules, solves


def at_equal_error(
    solves: list[Integration], rules: list[Integration]
) -> dict[Integration, Integration]:
    """Adaptive solve -> the smallest rule that is as exact; those that no rule reaches are left
    out."""
    pairs = {}
    for way in solves:
        enough = [rule for rule in rules if rule.error <= way.error]
        if enough:
            pairs[way] = min(enough, key=lambda rule: rule.nfe)
    return pairs


def fields(energy: TimeScoreEnergy, x: Tensor) -> dict[str, Action]:
    """The field (B, *) in the middle of the clock, at noisy images of x (B, *): by the Stein head,
    by few nodes, and by a differentiated ODE solve."""
    t = ARC_LENGTH.times(energy.path, energy.start, energy.end, 2)[1].item()
    generator = torch.Generator(x.device).manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype)
    time = torch.tensor(t, dtype=x.dtype, device=x.device).expand(len(x))
    point = energy.path.sample(noise, x, time).xt
    found: dict[str, Action] = {
        f"{num} nodes": lambda n=num: energy.with_nodes(n).score(point, t) for num in FIELD_NODES
    }
    if energy.model.stein_channels:
        head = torch.no_grad()(energy.stein_score(HEAD))
        found["head"] = lambda: head(point, t)
    for name, (rtol, atol) in TOLERANCES.items():
        found[name] = lambda r=rtol, a=atol: ode_gradient(energy, point, t, r, a)
    return found


def ode_gradient(energy: TimeScoreEnergy, x: Tensor, t: float, rtol: float, atol: float) -> Tensor:
    """grad log p_t by back-propagation through an adaptive solve, as the paper does it."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()

        def rate(time: Tensor) -> Tensor:
            return energy.model.time_score(point, time.expand(len(x)))

        like = x.flatten(1)[:, 0]
        found = integrate(rate, energy.start, t, like, "dopri5", rtol, atol)
        (gradient,) = torch.autograd.grad(found.value.sum(), point)
    return gradient - x
