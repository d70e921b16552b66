"""Small training runs, and what stays the same between two of them."""

from pathlib import Path

import torch
from safetensors.torch import load_file

#: Settings of a run of a moment, as keyword arguments
SMALL = {"block_out_channels": (8,), "norm_num_groups": 4, "num_nodes": 8, "dropout": 0.0}
SMALL |= {"train_batch_size": 4, "validation_images": 4, "validation_repeats": 1, "device": "cpu"}
SMALL |= {"mixed_precision": "no"}
SMALL |= {"num_preview_images": 0, "logging_steps": 1, "lr_warmup_steps": 2, "ema_decay": 0.9}
#: Metrics that differ between two identical runs
SPEEDS = ("images_per_second", "core_seconds")


def random_images(num: int, side: int) -> torch.Tensor:
    """Return the same images (num, 1, side, side) of 17 levels at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(17, (num, 1, side, side), generator=generator, dtype=torch.uint8)


def without_speeds(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if key not in SPEEDS} for row in rows]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def equal_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
