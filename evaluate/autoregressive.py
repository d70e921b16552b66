"""Train a gated PixelCNN for some core minutes, and compute its exact bits per dim.

python evaluate/autoregressive.py --dataset mnist --data_root data --limit 100

Each factor p(x_i | x_1, ..., x_{i-1}) of an image is categorical over the grey levels, so one pass
gives the log-likelihood. Compare it with the bits of `evaluate/bpd.py` on the same images.

Source: van den Oord et al. 2016, arXiv:1606.05328.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, glu, pad
from tqdm.auto import tqdm

from ebm_app.cli.command_line import CommonFlags, parse, run_script
from ebm_app.data.images import load_images
from ebm_app.data.lazy import Images
from ebm_app.training.optimizers import Muon
from ebm_app.utils.fields import AtLeastTwo, Positive, configuration, setting
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import make_accelerator
from ebm_app.utils.tensors import standard_error

#: Channels and layers of the network, 210,000 weights for MNIST, and images per batch
WIDTH, NUM_LAYERS, BATCH_SIZE = 48, 4, 16


@configuration(kw_only=True)
class Arguments(CommonFlags):
    dataset: str = setting("data set", "digits")
    data_root: str = setting("folder of the data sets", "data")
    split: Literal["validation", "test"] = setting("split to evaluate", "test")
    limit: AtLeastTwo | None = setting("images to evaluate; if not given, all", None)
    max_train_minutes: Positive = setting("core minutes of training", 4.0)
    learning_rate: Positive = setting("initial learning rate", 1e-2)
    output_dir: Path = setting("folder of the record", Path("runs/autoregressive"))


class GatedLayer(nn.Module):
    """Residual layer with a vertical stack v, which sees the rows above, and a horizontal stack h,
    which also sees the values to the left. The input of the network is shifted by one row for v
    and by one value for h, so no convolution needs a mask."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reach = channels  # one pixel; channels are interleaved as columns
        self.vertical = nn.Conv2d(WIDTH, 2 * WIDTH, (2, 2 * channels + 1))
        self.horizontal = nn.Conv2d(WIDTH, 2 * WIDTH, (1, 2 * channels + 1))
        self.across, self.out = nn.Conv2d(WIDTH, 2 * WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        v = v + glu(self.vertical(pad(v, (self.reach, self.reach, 1, 0))), 1)
        left = self.horizontal(pad(h, (2 * self.reach, 0)))
        return v, h + self.out(glu(left + self.across(v), 1))


class PixelCNN(nn.Module):
    """Autoregressive model of images (C, H, W), in the order of rows, columns and channels.

    Args:
        shape: (C, H, W).
        counts: number of pixels of each grey level; their frequencies are the initial predictions.
    """

    def __init__(self, shape: Sequence[int], counts: Tensor) -> None:
        super().__init__()
        channels, height, columns = shape
        axes = torch.linspace(-1, 1, height), torch.linspace(-1, 1, columns)
        grid = torch.stack(torch.meshgrid(*axes, indexing="ij")).repeat_interleave(channels, 2)
        channel = torch.eye(channels)[:, None].repeat(1, height, columns)
        self.register_buffer("position", torch.cat([grid, channel]))
        planes = 1 + len(self.position)
        self.vertical, self.horizontal = (nn.Conv2d(planes, WIDTH, 1) for _ in range(2))
        self.layers = nn.ModuleList(GatedLayer(channels) for _ in range(NUM_LAYERS))
        hidden, logits = nn.Conv2d(WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, len(counts), 1)
        nn.init.zeros_(logits.weight)
        logits.bias.data = ((1 + counts) / (1 + counts).sum()).log()
        self.head = nn.Sequential(nn.GELU(), hidden, nn.GELU(), logits)

    def forward(self, levels: Tensor) -> Tensor:
        """Return log P(image) in nats (B,), for grey levels (B, C, H, W)."""
        rows = levels.permute(0, 2, 3, 1).flatten(2)
        x = rows[:, None].to(self.position) * (2 / (self.head[-1].out_channels - 1)) - 1
        position = self.position.expand(len(x), -1, -1, -1)
        v = self.vertical(torch.cat([pad(x, (0, 0, 1, 0))[:, :, :-1], position], 1))
        h = self.horizontal(torch.cat([pad(x, (1, 0))[..., :-1], position], 1))
        for layer in self.layers:
            v, h = layer(v, h)
        logits = self.head(h).to(self.position.dtype)
        nats = cross_entropy(logits, rows.long(), reduction="none")
        return -nats.flatten(1).sum(1)


def train(model: PixelCNN, accelerator: Accelerator, images: Images, args: Arguments) -> int:
    """Train for the core minutes of ``args``, with a learning rate that falls linearly to 0.
    Return the number of steps."""
    optimizer = Muon(model.parameters(), fused=True)
    begin, budget, step = time.process_time(), 60 * args.max_train_minutes, 0
    with tqdm(total=round(budget), desc="train", unit="core s") as bar:
        while (spent := time.process_time() - begin) < budget:
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * (1 - spent / budget)
            rows = torch.randint(len(images), (BATCH_SIZE,))
            with accelerator.autocast():
                log_prob = model(images[rows].to(accelerator.device))
            accelerator.backward(-log_prob.mean() / math.prod(images.shape[1:]))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            bar.update(round(spent) - bar.n)
    return step


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train and evaluate a model; return its bits per dim and its cost."""
    args = parse(Arguments, __doc__, argv)
    accelerator = make_accelerator("auto", args.device)
    data = load_images(args.dataset, args.data_root)
    output = Output(args.output_dir / "autoregressive.json", args)
    torch.manual_seed(args.seed)
    pixels = data.train[torch.randint(len(data.train), (1000,))].flatten()
    model = PixelCNN(data.image_shape, pixels.bincount(minlength=data.num_levels))
    steps = train(model.to(accelerator.device), accelerator, data.train, args)
    levels, begin = data.split(args.split)[: args.limit], time.process_time()
    batches = torch.arange(len(levels)).split(BATCH_SIZE)
    with torch.no_grad():
        log_prob = torch.cat([model(levels[rows].to(accelerator.device)) for rows in batches])
    bits = -log_prob.cpu() / (math.prod(data.image_shape) * math.log(2))
    figures = {
        "bits_per_dim": bits.mean().item(),
        "stderr": standard_error(bits).item(),
        "num_images": len(bits),
        "steps": steps,
        "weights": sum(weight.numel() for weight in model.parameters()),
        "core_seconds_per_image": (time.process_time() - begin) / len(bits),
    }
    output.save(figures)
    print(to_markdown([figures]))
    return figures


if __name__ == "__main__":
    raise SystemExit(run_script(main))
