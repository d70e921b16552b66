"""Measure an anomaly detector on unusual images, made from the held-out images of its model.

python evaluate/anomaly.py mnist --limit 60 --num_unusual 30
python evaluate/anomaly.py runs/mine --fit 500

The table has the area under the ROC curve (AUROC) for each kind of unusual image: by the detector
in the model's folder, by scikit-learn's local outlier factor of the pixels, and by the
log-likelihood of ``--num_likelihoods`` images. anomaly.png shows an image of each kind and its
map. ``--fit`` first fits the detector to validation images, and saves it in the model's folder.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor
from torch import Generator, Tensor
from torch.nn import functional as F

from ebm_app.anomaly import AnomalyDetector
from ebm_app.command_line import CommonFlags, ModelFlag, parse, run_script
from ebm_app.data.datasets import load_images
from ebm_app.data.levels import ImageFormat, to_display
from ebm_app.data.pictures import read_images, to_pil
from ebm_app.ebm import EBM
from ebm_app.evaluation.held_out import images_for
from ebm_app.pretrained import find_folder
from ebm_app.utils.fields import AtLeastTwo, Count, configuration, setting
from ebm_app.utils.files import save_figure
from ebm_app.utils.output import Output, to_markdown
from ebm_app.utils.processes import resolve_device

#: Nominal false-alarm rate at which the fractions of flagged images are measured
RATE = 0.05
#: Number of validation images to fit the local outlier factor
NUM_FITTED = 2000
#: Resolution of the picture of the maps, and upper end and label of its colour scale
DPI, MAX_EXCESS = 130, 6
EXCESS_LABEL = "excess (nine in ten ordinary images: below 1)"
#: Data set of a model -> data set whose test images are unusual for it
OTHER_DATASETS = {"mnist": "fashion_mnist", "fashion_mnist": "mnist", "cifar10": "fashion_mnist"}


@configuration(kw_only=True)
class Arguments(CommonFlags, ModelFlag):
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    fit: Count = setting("validation images to fit the detector to; 0 for a fitted one", 0)
    limit: AtLeastTwo = setting("number of ordinary test images", 1000)
    num_unusual: AtLeastTwo = setting(
        "unusual images of each kind, made from the first test images", 250
    )
    num_likelihoods: Count = setting("images of each kind whose log-likelihood is computed", 0)
    output_dir: Path = setting("folder of the record and the figure", Path("runs/anomaly"))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure a detector on every kind of unusual image."""
    args = parse(Arguments, __doc__, argv)
    ebm = EBM.from_pretrained(args.model, resolve_device(args.device))
    data = images_for(ebm.config, ebm.config.dataset, args.data_root)
    detector = AnomalyDetector(ebm)
    if args.fit:
        about = {"dataset": ebm.config.dataset, "split": "validation"}
        detector.fit(data.validation[: args.fit]).save(find_folder(args.model), **about)
    else:
        detector.load(args.model)

    output = Output(args.output_dir / "anomaly.json", args)
    ordinary = data.display(data.test[: args.limit])
    begin, findings = time.perf_counter(), detector.examine(ordinary)
    seconds = (time.perf_counter() - begin) / len(ordinary)
    pixels = data.display(data.validation[:NUM_FITTED]).flatten(1)
    neighbours = LocalOutlierFactor(novelty=True).fit(pixels)
    log_prob = log_likelihoods(ebm, ordinary[: args.num_likelihoods])
    rows: dict[str, dict[str, float]] = {}
    shown: dict[str, tuple[Tensor, np.ndarray]] = {}
    source = data.test[: args.num_unusual]
    kinds = {kind: make_unusual(source, ebm.config, kind, args.seed) for kind in KINDS}
    if other := OTHER_DATASETS.get(ebm.config.dataset):
        kinds[other] = images_of(other, len(source), ebm.config, args.data_root)
    for kind, levels in kinds.items():
        unusual = data.display(levels)
        found = detector.examine(unusual)
        shown[kind] = unusual[0], found.maps[0]
        flagged = float((found.p_value <= RATE).mean())
        rows[kind] = {"detector": auroc(findings.score, found.score), "flagged": flagged}
        by_pixels = (neighbours.score_samples(x.flatten(1)) for x in (ordinary, unusual))
        rows[kind]["local outlier factor"] = auroc(*by_pixels)
        if args.num_likelihoods:
            values = log_likelihoods(ebm, unusual[: args.num_likelihoods])
            rows[kind]["likelihood"] = auroc(log_prob, values)
    print(to_markdown([{"unusual images": kind, **row} for kind, row in rows.items()]))
    metrics = {
        "num_images": len(ordinary),
        "seconds_per_image": seconds,
        "false_alarms": float((findings.p_value <= RATE).mean()),
        "rows": rows,
        "mean": float(np.mean([row["detector"] for row in rows.values()])),
    }
    output.save(metrics)
    save_maps(shown, output.folder / "anomaly.png")
    return metrics


def log_likelihoods(ebm: EBM, images: Tensor) -> np.ndarray:
    """Return lower bounds on log p of images (N, C, H, W) in nats: (N,)."""
    if not len(images):
        return np.empty(0)
    return ebm.log_prob(images, estimator="elbo", repeats=1).numpy()


def images_of(dataset: str, num: int, form: ImageFormat, data_root: str) -> Tensor:
    """Return the first test images of a data set as levels (N, C, H, W) of a model."""
    images = load_images(dataset, data_root).test[:num].permute(0, 2, 3, 1)
    pictures = map(to_pil, images.numpy())
    return read_images(pictures, form.image_shape, form.num_levels, resize=True)


def auroc(ordinary: np.ndarray, unusual: np.ndarray) -> float:
    """Return the probability that an unusual image scores below an ordinary one."""
    is_unusual = np.repeat([0, 1], [len(ordinary), len(unusual)])
    return float(roc_auc_score(is_unusual, -np.concatenate([ordinary, unusual])))


def save_maps(maps: Mapping[str, tuple[Tensor, np.ndarray]], path: Path) -> None:
    """Draw an image (C, H, W) of each kind, and below it the image with its map (H, W)."""
    figure = Figure(figsize=(1.3 * len(maps), 3), dpi=DPI, layout="constrained")
    columns = zip(figure.subplots(2, len(maps)).T, maps.items(), strict=True)
    for column, (kind, (image, excess)) in columns:
        for axes in column:
            axes.imshow(image.mean(0).numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        visible = np.ma.masked_less(excess, 1)
        overlay = column[1].imshow(visible, cmap="autumn_r", vmin=1, vmax=MAX_EXCESS)
        column[0].set_title(kind, fontsize="x-small", wrap=True)
    place = {"location": "bottom", "shrink": 0.4, "aspect": 40}
    figure.colorbar(overlay, ax=figure.axes, label=EXCESS_LABEL, **place)
    save_figure(figure, path)


def uniform(x: Tensor, generator: Generator, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Draw one uniform number per image, (N, 1, 1, 1)."""
    return low + (high - low) * torch.rand((len(x), 1, 1, 1), generator=generator)


def partner(x: Tensor, generator: Generator) -> Tensor:
    """Return a different image of the batch for each image."""
    return x.roll(1 + int(torch.randint(max(1, len(x) - 1), (), generator=generator)), 0)


def warp(x: Tensor, generator: Generator) -> Tensor:
    """Rotate by a random angle, scale by 0.55 to 1.8, shear and shift."""
    angle, log_scale, shear, left, up = (
        uniform(x, generator, -limit, limit).flatten() for limit in (math.pi, 0.6, 0.5, 0.4, 0.4)
    )
    scale, (cos, sin) = log_scale.exp(), (angle.cos(), angle.sin())
    rows = (scale * cos, scale * (shear - sin), left, scale * sin, scale * cos, up)
    matrix = torch.stack(rows, 1).view(-1, 2, 3)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


def quarter_turn(x: Tensor, generator: Generator) -> Tensor:
    """Rotate by 90 degrees in a random direction; an image that is not square is turned round."""
    turns = 1 if x.shape[2] == x.shape[3] else 2
    is_left = uniform(x, generator) < 0.5
    return torch.where(is_left, x.rot90(turns, (2, 3)), x.rot90(-turns, (2, 3)))


def mirror(x: Tensor, generator: Generator) -> Tensor:
    """Exchange left and right."""
    return x.flip(3)


def halve(x: Tensor, generator: Generator) -> Tensor:
    """Combine halves of two images along a straight line through the centre."""
    angle = uniform(x, generator, 0, 2 * math.pi)
    rows, columns = (torch.linspace(-1, 1, side) for side in x.shape[-2:])
    is_first = rows[:, None] * angle.sin() + columns * angle.cos() > 0
    return torch.where(is_first, x, partner(x, generator))


def blank(x: Tensor, generator: Generator) -> Tensor:
    """Return blank images: a third black, a sixth white, a sixth gradients, the rest constant."""
    left, right = uniform(x, generator), uniform(x, generator)
    choice = uniform(x, generator, 0, 6).floor()
    left = torch.where(choice < 2, 0.0, torch.where(choice == 2, 1.0, left))
    right = torch.where(choice == 5, right, left)
    return torch.lerp(left, right, torch.linspace(0, 1, x.shape[-1])).expand_as(x)


def add_noise(x: Tensor, generator: Generator) -> Tensor:
    """Add normal noise with log-uniform standard deviation from 0.005 to 1."""
    std = uniform(x, generator, math.log(0.005), 0).exp()
    return x + std * torch.randn(x.shape, generator=generator)


def smooth_noise(x: Tensor, generator: Generator) -> Tensor:
    """Return a random grey value plus normal noise at several length scales."""
    noise, side = uniform(x, generator).expand_as(x), 1
    while side <= min(x.shape[-2:]):
        draws = torch.randn((*x.shape[:2], side, side), generator=generator)
        std = uniform(x, generator, math.log(0.01), 0).exp()
        noise = noise + std * F.interpolate(draws, x.shape[-2:], mode="bilinear")
        side *= 2
    return noise


def change_contrast(x: Tensor, generator: Generator) -> Tensor:
    """Invert a third of the images, then apply a power and a linear map to the grey values."""
    x = torch.where(uniform(x, generator) < 1 / 3, 1 - x, x)
    powers = x.clamp(0, 1) ** uniform(x, generator, -1, 1).exp()
    low, high = uniform(x, generator, -0.5, 0.5), uniform(x, generator, 0.5, 1.5)
    return torch.lerp(low.clamp(min=0), high.clamp(max=1), powers)


def posterise(x: Tensor, generator: Generator) -> Tensor:
    """Round the grey values to 2 to 8 levels."""
    steps = uniform(x, generator, 1, 8).floor()
    return (x.clamp(0, 1) * steps).round() / steps


def shuffle(x: Tensor, generator: Generator) -> Tensor:
    """Permute square blocks with sides of 1, 2 or 4 pixels."""
    size = 2 ** int(torch.randint(3, (), generator=generator))
    size = math.gcd(size, *x.shape[-2:])
    blocks = F.pixel_unshuffle(x, size).flatten(2)
    order = torch.rand((len(x), 1, blocks.shape[2]), generator=generator).argsort(2)
    shape = (len(x), -1, x.shape[-2] // size, x.shape[-1] // size)
    return F.pixel_shuffle(blocks.gather(2, order.expand_as(blocks)).view(shape), size)


def blur_or_sharpen(x: Tensor, generator: Generator) -> Tensor:
    """Blur or sharpen by interpolating to, or extrapolating from, a local mean."""
    mean = F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
    return torch.lerp(x, mean, uniform(x, generator, -2, 1))


def thicken(x: Tensor, generator: Generator) -> Tensor:
    """Interpolate between each pixel and the max of its neighbourhood."""
    return torch.lerp(x, F.max_pool2d(x, 3, 1, 1), uniform(x, generator))


def insert_square(x: Tensor, generator: Generator) -> Tensor:
    """Replace a square by a square of another image."""
    rows, columns = (torch.linspace(-1, 1, side) for side in x.shape[-2:])
    top, left = uniform(x, generator, -0.7, 0.7), uniform(x, generator, -0.7, 0.7)
    away = torch.maximum((rows[:, None] - top).abs(), (columns - left).abs())
    return torch.where(away < uniform(x, generator, 0.2, 0.6), partner(x, generator), x)


#: Name -> (images (N, C, H, W) in [0, 1], generator) -> changed images. The strength of a change
#: is random, from hardly visible to unrelated to the data
KINDS: dict[str, Callable[[Tensor, Generator], Tensor]] = {
    "warped": warp,
    "quarter turns": quarter_turn,
    "mirrored": mirror,
    "halves of two": halve,
    "blank": blank,
    "noisy": add_noise,
    "smooth noise": smooth_noise,
    "contrast": change_contrast,
    "posterised": posterise,
    "shuffled": shuffle,
    "blurred or sharpened": blur_or_sharpen,
    "thick strokes": thicken,
    "a square of another": insert_square,
}


def make_unusual(levels: Tensor, form: ImageFormat, kind: str, seed: int) -> Tensor:
    """Return levels (N, C, H, W), changed by a kind of ``KINDS``."""
    generator = torch.Generator().manual_seed(seed)
    x = KINDS[kind](to_display(levels.float(), form.num_levels), generator).clamp(0, 1)
    return (x * (form.num_levels - 1)).round().to(torch.uint8)


if __name__ == "__main__":
    raise SystemExit(run_script(main))
