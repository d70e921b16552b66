"""What lies in the folder of a model for the page to compare with: the log-likelihoods of held-out
images, and ten of these images as PNG files."""

from pathlib import Path

import torch
from torch import Tensor

from ebm_app.data.levels import to_display
from ebm_app.data.png import grid_of, save_image
from ebm_app.image_models.ebm import EBM
from ebm_app.io.records import as_written, read_json, write_json
from ebm_app.models.config import EBMConfig

HELD_OUT_FILE, EXAMPLE_FILE = "held_out.json", "example_{}.png"
NUM_EXAMPLES = 10
#: every pixel of an example is repeated until it is as wide: a page shows an image no larger
EXAMPLE_PIXELS = 224


def read_likelihoods(folder: Path, ebm: EBM, digest: str) -> Tensor | None:
    """Log-likelihoods in nats (N,) float64 of held-out images, where the folder has them, and for
    these weights and this default estimator; otherwise None.

    Raises:
        UserError: for a damaged record.
    """
    path = folder / HELD_OUT_FILE
    if not path.exists():
        return None
    with as_written(path):
        record = read_json(path)
        if (record["weights"], record["estimator"]) != (digest, ebm.default_estimator):
            return None
        return torch.tensor(record["log_prob"], dtype=torch.float64)


def write_likelihoods(folder: Path, ebm: EBM, digest: str, log_prob: Tensor, seed: int) -> None:
    """Write the record of log-likelihoods in nats (N,), rounded to 0.01.

    Raises:
        UserError: where the disk refuses.
    """
    data = {
        "dataset": ebm.config.dataset,
        "split": "test",
        "estimator": ebm.default_estimator,
        "dequantisation": ebm.config.dequantisation,
        "eps": ebm.config.eps,
        "seed": seed,
        "weights": digest,
        "log_prob": [round(value, 2) for value in log_prob.tolist()],
    }
    write_json(folder / HELD_OUT_FILE, data)


def example_files(folder: Path) -> list[Path]:
    """The examples in a folder, in their order."""
    files = [folder / EXAMPLE_FILE.format(index) for index in range(NUM_EXAMPLES)]
    return [file for file in files if file.is_file()]


def write_examples(folder: Path, config: EBMConfig, levels: Tensor) -> list[Path]:
    """Write the first ten images (N, C, H, W) of a model's levels with their exact pixels, each
    repeated; the files."""
    images = to_display(levels[:NUM_EXAMPLES], config.num_levels, config.palette)
    files = [folder / EXAMPLE_FILE.format(index) for index in range(len(images))]
    for file, image in zip(files, images, strict=True):
        save_image(grid_of(image[None], EXAMPLE_PIXELS), file)
    return files
