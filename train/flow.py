"""Fit a normalising flow, whose latent space an energy-based model can use.

python train/flow.py --flow gaussian --dataset digits --output_dir runs/gaussian
python train/flow.py --flow spline --dataset digits --output_dir runs/spline
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from ebm_app.command_line import parse, run_script
from ebm_app.data.levels import dequantise
from ebm_app.flow import Flow, FlowConfig
from ebm_app.spaces import SPACES
from ebm_app.training.checkpoint import prepare_folder, refuse_to_overwrite
from ebm_app.training.settings import DataFlags, FolderFlags
from ebm_app.utils import RUN_FILE
from ebm_app.utils.fields import BatchSize, Positive, PositiveInt, Seed, configuration, setting
from ebm_app.utils.fitting import fit
from ebm_app.utils.output import Output
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.random import initial_weights, make_generator
from ebm_app.utils.registry import choose
from ebm_app.utils.tensors import standard_error

#: Min and max dequantised images that a flow is fitted to; small data sets are repeated
MIN_FIT_IMAGES, MAX_FIT_IMAGES = 30_000, 100_000
#: Validation images, and dequantisation draws of each
NUM_VALIDATION, NUM_DRAWS = 1000, 4


@configuration(kw_only=True)
class Arguments(DataFlags, FolderFlags):
    flow: str = setting(
        "gaussian (multivariate normal logits), copula (normalised marginals, then whitening) or "
        "spline (spline coupling layers, trained by maximum likelihood)",
        "gaussian",
    )
    max_train_steps: PositiveInt = setting("training steps of a spline flow", 3000)
    train_batch_size: BatchSize = setting("images per training step", 128)
    learning_rate: Positive = setting("peak learning rate", 2e-3)
    seed: Seed = setting("seed of weights, batches and noise", 0)
    output_dir: Path = setting("folder of the run", Path("runs/flow"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit a flow and train its weights, if any; return its bits per dim on validation images."""
    args = parse(Arguments, __doc__, argv)
    kind = choose("flow", args.flow, SPACES.keys() - {"ambient", "display"})
    if not args.overwrite_output_dir:
        refuse_to_overwrite(args.output_dir)
    data = args.load_data()
    output, num_levels = Output(args.output_dir / RUN_FILE, args), data.num_levels
    output.data["images"] = data.summary()
    with initial_weights(args.seed):
        flow = Flow(FlowConfig(data.name, data.image_shape, num_levels, kind))
    # fit the parameters that have a closed form
    num = min(len(data.train), MAX_FIT_IMAGES)
    repeats = max(1, -(-MIN_FIT_IMAGES // num))
    levels = data.train[torch.arange(num)].repeat(repeats, 1, 1, 1)
    generator = make_generator("cpu", args.seed)
    noise = torch.rand(levels.shape, generator=generator)
    flow.space.fit(dequantise(levels, num_levels, noise), repeats)
    flow.requires_grad_(True).to(resolve_device(args.device))
    if weights := list(flow.parameters()):

        def loss_of_step(step: int) -> Tensor:
            rows = torch.randint(len(data.train), (args.train_batch_size,), generator=generator)
            noise = torch.rand((len(rows), *data.image_shape), generator=generator)
            return flow(dequantise(data.train[rows], num_levels, noise).to(flow.device)).mean()

        steps = fit(weights, loss_of_step, args.max_train_steps, args.learning_rate)
        for _ in tqdm(steps, total=args.max_train_steps, desc="train"):
            pass
    prepare_folder(args.output_dir, args.overwrite_output_dir)
    flow.eval().save_pretrained(args.output_dir)
    validation = data.validation[:NUM_VALIDATION]
    bits = flow.likelihood(validation, NUM_DRAWS, args.seed).bits_per_dim
    figures = {
        "output_dir": str(args.output_dir),
        "bits_per_dim": bits.mean().item(),
        "stderr": standard_error(bits).item(),
    }
    output.save(figures)
    return figures


if __name__ == "__main__":
    raise SystemExit(run_script(main))
