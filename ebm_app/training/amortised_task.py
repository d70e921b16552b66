"""Distillation of a model into an amortised likelihood."""

import math
import time
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
from ebm_app.training.recipes import SIZES, level_settings, network_settings
from ebm_app.training.tasks import Task
from ebm_app.utils.errors import UserError
from ebm_app.utils.files import read_header, read_tensors, write_tensors
from ebm_app.utils.random import RowNoise, make_generator
from ebm_app.utils.tensors import standard_error, sum_except_batch

#: Images per file of targets
SHARD = 128
#: Bits per dim from which the weight of an image in the loss falls
USUAL_BITS = 1.0
#: Points of the calibrated error, as quantiles of the distance
QUANTILES = torch.linspace(0.02, 0.98, 13, dtype=torch.float64)


class Targets(NamedTuple):
    """Images with the terms of their bound by the teacher.

    Attributes:
        levels: (N, C, H, W) uint8.
        terms: (N, C, H, W), in nats.
        is_ordinary: (N,) bool.
    """

    levels: Tensor
    terms: Tensor
    is_ordinary: Tensor


class TargetMaker:
    """Computes targets in files of ``SHARD`` images, which later runs reuse.

    Half of the images are ordinary, the others are changed by ``KINDS``. Held-out targets are of
    validation images; of every four images one is changed by ``OTHER_KINDS``, which are not
    trained on.

    Args:
        folder: folder of the files.
        settings: arguments of ``EBM.likelihood``.
    """

    def __init__(
        self, teacher: EBM, data: ImageData, folder: Path, seed: int, **settings: Any
    ) -> None:
        self.teacher, self.data, self.folder = teacher, data, folder
        self.seed, self.settings = seed, settings
        source = [fingerprint(teacher.density.model), [data.name], seed, settings]
        self.about = {"about": str(source)}
        folder.mkdir(parents=True, exist_ok=True)

    def make(self, split: str, num_images: int, deadline: float = math.inf) -> Targets:
        """Return targets of about ``num_images`` images of a split, or of those that are ready at
        ``deadline``, a time of ``time.perf_counter``."""
        shards: list[Targets] = []
        for index in tqdm(range(max(1, num_images // SHARD)), desc=split, disable=None):
            path = self.folder / f"{split}-{index:04d}.safetensors"
            if not path.exists():
                if shards and time.perf_counter() > deadline:
                    break
                self._compute(path, split, 2 * (self.seed + index) + (split == "train"))
            if read_header(path)[1] != self.about:
                raise UserError(
                    f"{path} has targets of another model or other settings. Delete {self.folder}."
                )
            shards.append(Targets(**read_tensors(path)))
        return Targets(*map(torch.cat, zip(*shards, strict=True)))

    def _compute(self, path: Path, split: str, seed: int) -> None:
        """Compute the targets of a file."""
        generator, num_levels = make_generator("cpu", 4, seed), self.data.num_levels
        images = self.data.split(split)

        def draw(num: int) -> Tensor:
            return images[torch.randint(len(images), (num,), generator=generator)]

        levels, unusual = draw(SHARD).clone(), slice(1, None, 2)
        levels[unusual] = make_unusual(levels[unusual], num_levels, generator, KINDS)
        if split != "train":
            others = make_unusual(draw(SHARD // 4), num_levels, generator, OTHER_KINDS)
            levels[3::4] = others
        terms = self.teacher.likelihood(levels, seed=seed, **self.settings).components
        if terms is None:
            raise UserError("This model has no terms per pixel, so they cannot be distilled.")
        targets = Targets(levels, terms.float(), torch.arange(SHARD) % 2 == 0)
        write_tensors(path, targets._asdict(), self.about)


class Regression(nn.Module):
    r"""Loss of predicted terms g for targets c of an image with D dimensions,

        w [sum_i (g_i - c_i)^2 + (sum_i g_i - c_i)^2] / (D s^2),

    where s is the standard deviation of the terms of ordinary images, and w = 1 / max(1, bits)^2
    weights errors relative to the bits per dim of the image. The weight is that of the predicted
    bits: one that depended on the noise of the target would bias the prediction.
    """

    def __init__(self, network: AmortisedLikelihood) -> None:
        super().__init__()
        self.network = network

    def forward(self, levels: Tensor, terms: Tensor) -> Tensor:
        """Return the losses (B,) of levels and targets (B, C, H, W)."""
        predicted, _ = self.network(levels)
        excess = (predicted - terms) / self.network.config.std
        num_dims = levels[0].numel()
        bits = to_bits_per_dim(sum_except_batch(predicted.detach()), num_dims) / USUAL_BITS
        squares = sum_except_batch(excess.square()) + sum_except_batch(excess).square()
        return squares / num_dims / bits.clamp(min=1).square()


class AmortisedTask(Task):
    """Trains an ``AmortisedLikelihood`` on targets. Validation compares it with the bound of
    held-out images."""

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
        """Return the loss, the predicted bits of ordinary images, and the mean and standard
        deviation of their difference from the bits of the bound."""
        is_ordinary = self.unseen.is_ordinary[: len(self.validation)]
        predicted, _ = predict(self.model, self.validation[is_ordinary])
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
        network.set_training_features(predict(network, self.targets.levels)[1])
        table = calibrate(network, self.unseen)
        network.config = replace(network.config, calibration=table)
        if self.accelerator.is_main_process:
            network.save_pretrained(output_dir)
        scale = math.log(2) * math.prod(network.config.image_shape)
        return {"offset_bits": table.offset / scale, "spread_bits": table.spread / scale}


def build_network(teacher: EBM, targets: Targets) -> AmortisedLikelihood:
    """Return a network for a teacher. It has the shape and the weights of the teacher's network,
    or the size "small" for a wider teacher."""
    form, ordinary, size = teacher.config, targets.terms[targets.is_ordinary], SIZES["small"]
    net = replace(form.net, dropout=0.0)
    if max(net.block_out_channels) > max(size.channels):
        net = UNetConfig(**network_settings(size, form.image_shape))
    frequencies = form.input_frequencies or level_settings(form.num_levels)["input_frequencies"]
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
    own = network.net.state_dict()
    for name, weight in teacher.density.model.state_dict().items():
        key = f"unet.{name.rpartition('unet.')[2]}"
        if key == "unet.conv_in.weight":  # the last channels are a condition, zero for data
            weight = weight[:, : own[key].shape[1]]
        if "early." not in name and key in own and own[key].shape == weight.shape:
            own[key] = weight
    network.net.load_state_dict(own)
    return network


@torch.no_grad()
def predict(network: AmortisedLikelihood, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the predicted log P (N,) of levels in nats, without the offset, and the summaries of
    the features (N, 2 F), on the CPU."""
    parts = [network(rows.to(network.device)) for rows in levels.split(SHARD)]
    values = torch.cat([sum_except_batch(terms.double()) for terms, _ in parts])
    return values.cpu(), torch.cat([summary for _, summary in parts]).cpu()


def calibrate(network: AmortisedLikelihood, held_out: Targets) -> ErrorTable:
    """Measure offset, spread and error of a network on held-out images."""
    values, summaries = predict(network, held_out.levels)
    difference = values - sum_except_batch(held_out.terms.double())
    ordinary = difference[held_out.is_ordinary]
    offset, spread = ordinary.mean().item(), ordinary.std().item()
    distance = network.distance(summaries.to(network.device)).double().cpu()
    curve = IsotonicRegression(out_of_bounds="clip")
    curve.fit(distance.numpy(), (difference - offset).square().numpy())
    points = distance.quantile(QUANTILES)
    errors = curve.predict(points.numpy()) ** 0.5
    return ErrorTable(offset, spread, tuple(points.tolist()), tuple(errors.tolist()))
