"""What a training step of images costs, beside the bare network on the same input."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ebm_app.data.images import ImageData
from ebm_app.io.processes import make_accelerator
from ebm_app.models.config import EBMConfig, TrainingConfig
from ebm_app.models.parametrisation import default_prediction
from ebm_app.training.tasks import EBMTask
from ebm_app.training.trainer import Trainer

Action = Callable[[], None]
#: side of the matrices whose product tells what a device can do
MATRIX = 2048


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


def under_autocast(action: Action, device: str) -> Action:
    """The same with bfloat16 in place of float32 where autocast deems it safe."""

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            action()

    return step


def saved_bytes(action: Action) -> int:
    """Bytes of the tensors that the action's backward passes need, each storage counted once."""
    sizes: dict[int, int] = {}
    kept = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        action()
    return sum(sizes.values())


def flops(action: Action) -> int:
    """Floating-point operations of an action's convolutions and matrix products; torch cannot
    count them where a backward pass is differentiated again, as in TSM."""
    with FlopCounterMode(display=False) as counter:
        action()
    return counter.get_total_flops()


def matrix_product(device: str) -> tuple[Action, int]:
    """A large matrix product in float32, and its floating-point operations."""
    a = torch.randn(MATRIX, MATRIX, device=device)

    def multiply() -> None:
        torch.mm(a, a)

    return multiply, 2 * MATRIX**3


def top_operations(action: Action, device: str, num: int = 5) -> dict[str, float]:
    """The operations in which an action spends most of its time, with their shares of it."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=activities) as found:
        action()
    name = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    times = {event.key: getattr(event, name) for event in found.key_averages()}
    total = sum(times.values())
    best = sorted(times, key=times.__getitem__, reverse=True)[:num]
    return {key: times[key] / total for key in best}
