"""Distillation of a model into an amortised likelihood."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from sklearn.isotonic import IsotonicRegression
from torch import Tensor, nn
from tqdm.auto import tqdm

from ebm_app.config import LoopConfig, UNetConfig
from ebm_app.data.images import ImageData
from ebm_app.data.unusual import KINDS, OTHER_KINDS, make_unusual
from ebm_app.ebm import EBM
from ebm_app.likelihood.amortised import AmortisedConfig, AmortisedLikelihood, ErrorTable
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.pretrained import fingerprint
from ebm_app.training.recipes import SIZES, network_settings
from ebm_app.training.tasks import Task
from ebm_app.training.transfer import copy_weights
from ebm_app.utils.errors import UserError
from ebm_app.utils.files import read_header, read_tensors, write_tensors
from ebm_app.utils.random import RowNoise, make_generator
from ebm_app.utils.tensors import standard_error, sum_except_batch

#: Images per target file
SHARD = 128
#: Knots of the calibrated error, as quantiles of the distance
QUANTILES = torch.linspace(0.02, 0.98, 13, dtype=torch.float64)


class Targets(NamedTuple):
    """Images and the per-dimension terms of the teacher's bound.

    Attributes:
        levels: (N, C, H, W) uint8.
        terms: (N, C, H, W), in nats.
        is_ordinary: (N,) bool.
    """

    levels: Tensor
    terms: Tensor
    is_ordinary: Tensor


def make_targets(
    teacher: EBM,
    sources: Sequence[ImageData],
    split: str,
    num_images: int,
    folder: Path,
    seed: int = 0,
    deadline: float = math.inf,
    **settings: Any,
) -> Targets:
    """Compute targets for about ``num_images`` images of a split. Later runs reuse the files of
    ``SHARD`` images in ``folder``.

    Args:
        sources: the teacher's data set, then data sets whose images are unusual for the teacher.
        deadline: value of ``time.perf_counter`` after which no further file is computed.
        settings: settings of the estimator "elbo".
    """
    names = [source.name for source in sources]
    about = {"about": str([fingerprint(teacher.density.model), names, seed, settings])}
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[Targets] = []
    for index in tqdm(range(max(1, num_images // SHARD)), desc=split, disable=None):
        path = folder / f"{split}-{index:04d}.safetensors"
        if not path.exists():
            if shards and time.perf_counter() > deadline:
                break
            own_seed = 2 * (seed + index) + (split == "train")
            levels = draw_images(sources, split, make_generator("cpu", 4, own_seed))
            terms = teacher.likelihood(levels, "elbo", seed=own_seed, **settings).components
            if terms is None:
                raise UserError("This model has no per-pixel terms, which distillation requires.")
            targets = Targets(levels, terms.float(), torch.arange(SHARD) % 2 == 0)
            write_tensors(path, targets._asdict(), about)
        if read_header(path)[1] != about:
            raise UserError(
                f"{path} was computed with another model or other settings. Delete {folder}."
            )
        shards.append(Targets(**read_tensors(path)))
    return Targets(*map(torch.cat, zip(*shards, strict=True)))


def draw_images(sources: Sequence[ImageData], split: str, generator: torch.Generator) -> Tensor:
    """Draw the grey levels (SHARD, C, H, W) of a file. Even rows are ordinary images; odd rows are
    changed by ``KINDS``. Every fourth row is replaced: in the training split by an image of the
    other sources, if any, and in other splits by an image changed by ``OTHER_KINDS``."""
    data, *others = sources

    def draw(images: Tensor, num: int) -> Tensor:
        return images[torch.randint(len(images), (num,), generator=generator)]

    levels, unusual = draw(data.split(split), SHARD).clone(), slice(1, None, 2)
    levels[unusual] = make_unusual(levels[unusual], data.num_levels, generator, KINDS)
    if split != "train":
        images = draw(data.split(split), SHARD // 4)
        levels[3::4] = make_unusual(images, data.num_levels, generator, OTHER_KINDS)
    elif others:
        levels[3::4] = draw(torch.cat([other.train for other in others]), SHARD // 4)
    return levels


class Regression(nn.Module):
    r"""Regression loss of predicted terms g on target terms c of an image with D dimensions,

        w [sum_i (g_i - c_i)^2 + (sum_i g_i - c_i)^2] / (D s^2),

    where s is the standard deviation of the terms of ordinary images. The weight
    w = 1 / max(1, bits)^2 makes errors relative to the bits per dim of the image. It uses the
    predicted bits, because a weight that depends on the target's noise would bias the prediction.
    """

    def __init__(self, network: AmortisedLikelihood) -> None:
        super().__init__()
        self.network = network

    def forward(self, levels: Tensor, terms: Tensor) -> Tensor:
        """Return the losses (B,) for grey levels and target terms (B, C, H, W)."""
        predicted, _ = self.network(levels)
        excess = (predicted - terms) / self.network.config.std
        num_dims = levels[0].numel()
        bits = to_bits_per_dim(sum_except_batch(predicted.detach()), num_dims)
        squares = sum_except_batch(excess.square()) + sum_except_batch(excess).square()
        return squares / num_dims / bits.clamp(min=1).square()


class AmortisedTask(Task):
    """Trains an ``AmortisedLikelihood`` on targets. Validation compares it with the teacher's
    bound on held-out images."""

    name = "amortised"

    def __init__(
        self,
        accelerator: Accelerator,
        teacher: EBM,
        targets: Targets,
        held_out: Targets,
        config: LoopConfig,
    ) -> None:
        torch.manual_seed(config.seed)
        self.targets, self.unseen = targets, held_out
        network = build_network(teacher, targets).to(accelerator.device)
        form = teacher.config
        images = (targets.levels, held_out.levels, held_out.levels)
        data = ImageData(form.dataset, form.num_levels, *images)
        super().__init__(accelerator, network, Regression(network), config, data)

    def batch(self, step: int, rows: Tensor) -> tuple[Tensor, ...]:
        chosen, device = self.order(step)[rows], self.accelerator.device
        return self.levels[chosen.to(device)], self.targets.terms[chosen].to(device)

    def points(self, levels: Tensor, noise: RowNoise) -> tuple[Tensor, ...]:
        return levels, self.unseen.terms[noise.rows].to(levels.device)

    def validate(self) -> dict[str, float]:
        """Return the loss, the predicted bits per dim of ordinary images, and the mean and
        standard deviation of predicted minus bound bits per dim."""
        is_ordinary = self.unseen.is_ordinary[: len(self.validation)]
        terms, _ = self.model.predict(self.validation[is_ordinary])
        predicted = sum_except_batch(terms).cpu()
        bound = sum_except_batch(self.unseen.terms[: len(is_ordinary)][is_ordinary])
        num_dims = self.validation[0].numel()
        bits = to_bits_per_dim(predicted, num_dims)
        difference = to_bits_per_dim(predicted - bound, num_dims)
        return {
            "validation_loss": self.validation_loss(),
            "validation_bits_per_dim": bits.mean().item(),
            "validation_stderr": standard_error(bits).item(),
            "validation_difference": difference.mean().item(),
            "validation_spread": difference.std().item(),
        }

    def final_metrics(self, output_dir: Path) -> dict[str, Any]:
        network = AmortisedLikelihood.from_pretrained(output_dir, str(self.accelerator.device))
        network.set_training_features(network.predict(self.targets.levels)[1].cpu())
        table = calibrate(network, self.unseen)
        network.config = replace(network.config, calibration=table)
        if self.accelerator.is_main_process:
            network.save_pretrained(output_dir)
        scale = math.log(2) * math.prod(network.config.image_shape)
        return {"offset_bits": table.offset / scale, "spread_bits": table.spread / scale}


def build_network(teacher: EBM, targets: Targets) -> AmortisedLikelihood:
    """Build a network with the architecture, Fourier features and weights of the teacher's
    network. If that is larger than size "small", build a network of this size, with random weights
    and without Fourier features."""
    form, ordinary, size = teacher.config, targets.terms[targets.is_ordinary], SIZES["small"]
    net, frequencies = replace(form.net, dropout=0.0), form.input_frequencies
    is_wide = max(net.block_out_channels) > max(size.channels)
    if is_large := is_wide or net.layers_per_block > size.layers_per_block:
        net, frequencies = UNetConfig(**network_settings(size, form.image_shape)), ()
    config = AmortisedConfig(
        form.dataset,
        form.image_shape,
        form.num_levels,
        fingerprint(teacher.density.model),
        ordinary.mean().item(),
        ordinary.std().item(),
        net,
        frequencies,
    )
    network = AmortisedLikelihood(config)
    if not is_large:
        copy_weights(teacher, network.net)
    return network


def calibrate(network: AmortisedLikelihood, held_out: Targets) -> ErrorTable:
    """Measure the offset, spread and error of a network on held-out images."""
    terms, summaries = network.predict(held_out.levels)
    difference = sum_except_batch(terms.cpu() - held_out.terms)
    ordinary = difference[held_out.is_ordinary]
    offset, spread = ordinary.mean().item(), ordinary.std().item()
    distance = network.distance(summaries).double().cpu()
    curve = IsotonicRegression(out_of_bounds="clip")
    curve.fit(distance.numpy(), (difference - offset).square().numpy())
    points = distance.quantile(QUANTILES)
    errors = curve.predict(points.numpy()) ** 0.5
    return ErrorTable(offset, spread, tuple(points.tolist()), tuple(errors.tolist()))
