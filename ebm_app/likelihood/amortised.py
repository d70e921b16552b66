r"""Amortised likelihood: log P(image) predicted by one pass of a small network.

The network maps a clean image to the per-dimension terms of a teacher model's bound, in nats. It
is trained by regression on ordinary and unusual images (``training.amortised_task``). Unlike the
bound, the prediction is not normalised, and it can be far off for images that are out of
distribution; ``error`` estimates by how much.

The error is calibrated on held-out images, including kinds of images that are not trained on. It
is the root mean square of prediction minus bound, a non-decreasing function of the Mahalanobis
distance between the features of an image and those of the training images.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from annotated_types import Len
from torch import Tensor, nn

from ebm_app.config import FORMAT_VERSION, Frequencies, ImageShape, UNetConfig
from ebm_app.folders import AMORTISED_FOLDER, CONFIG_FILE, WEIGHTS_FILE
from ebm_app.likelihood.dequantisation import Cells, Dequantiser
from ebm_app.likelihood.estimator import Estimator
from ebm_app.nets.density import PathDensity
from ebm_app.nets.protocols import LogDensityEstimate
from ebm_app.nets.unet import UNet
from ebm_app.pretrained import PretrainedModel, fingerprint
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import NonNegative, Number, NumLevels, Positive, configuration
from ebm_app.utils.files import read_json, write_tensors
from ebm_app.utils.tensors import rows_per_call, sum_except_batch

#: Number of feature channels from which the terms are predicted
FEATURES = 32
#: Scales s, in grey levels, of the inputs asinh(d / s) for the difference d of neighbouring
#: pixels, which are linear below s and logarithmic above
SCALES = (2.0, 16.0)


@configuration
class ErrorTable:
    """Calibration of an ``AmortisedLikelihood`` on held-out images, in nats.

    Args:
        offset: mean of prediction minus bound over ordinary images, which is subtracted.
        spread: standard deviation of that difference.
        distances: increasing distances in feature space.
        errors: root mean square of prediction minus bound at these distances.
    """

    offset: Number
    spread: NonNegative
    distances: Annotated[tuple[NonNegative, ...], Len(2)]
    errors: Annotated[tuple[NonNegative, ...], Len(2)]

    def error_at(self, distance: Tensor) -> Tensor:
        """Return errors (B,) at distances (B,): interpolated linearly up to the last distance, and
        proportional to the distance beyond."""
        inside = np.interp(distance.cpu().numpy(), self.distances, self.errors)
        beyond = (distance / self.distances[-1]).clamp(min=1)
        return torch.from_numpy(inside).to(distance) * beyond


@configuration
class AmortisedConfig:
    """Configuration of an ``AmortisedLikelihood``.

    Args:
        dataset, image_shape, num_levels: those of the teacher.
        teacher: SHA-256 digest of the teacher's weights.
        mean, std: mean and standard deviation of the terms over ordinary training images, in nats.
        net: the network.
        input_frequencies: frequencies of the Fourier features of the input; if empty, differences
            of neighbouring pixels are used instead.
        calibration: error table, measured after training.
    """

    dataset: str
    image_shape: ImageShape
    num_levels: NumLevels
    teacher: str
    mean: Number
    std: Positive
    net: UNetConfig = UNetConfig()
    input_frequencies: Frequencies = ()
    calibration: ErrorTable | None = None
    format_version: int = FORMAT_VERSION


class AmortisedLikelihood(PretrainedModel):
    """Network that predicts the terms of log P from levels (B, C, H, W), and features for its
    error.

    Its inputs are x = 2 (k + 1/2) / L - 1 for level k of L, and Fourier features of x or, without
    frequencies, asinh(d / s) / 2 for the difference d of k from its upper and its left neighbour,
    for s in ``SCALES``. Weights are stored in half precision.
    """

    config_class, kind = AmortisedConfig, "amortised likelihood"

    def __init__(self, config: AmortisedConfig) -> None:
        super().__init__(config)
        channels, height, width = config.image_shape
        num_features = 2 * len(config.input_frequencies or SCALES)
        shape = (channels * (1 + num_features), height, width)
        self.net = UNet(shape, FEATURES, config.net)
        self.head = nn.Conv2d(FEATURES, channels, 1)
        self.register_buffer("centre", torch.zeros(2 * FEATURES))
        self.register_buffer("whitening", torch.eye(2 * FEATURES))

    def forward(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the terms (B, C, H, W) of log P in nats, and a summary (B, 2 F) of the features:
        their mean and root mean square over the pixels."""
        x = self.inputs(levels.to(self.head.weight.dtype))
        features = self.net(x, x.new_ones(len(x)))
        terms = self.config.mean + self.config.std * self.head(features).float()
        flat = features.float().flatten(2)
        return terms, torch.cat([flat.mean(2), flat.square().mean(2).sqrt()], 1)

    def inputs(self, levels: Tensor) -> Tensor:
        """Return the inputs (B, C (1 + F), H, W) for floating-point levels (B, C, H, W)."""
        x = (2 * levels + 1) / self.config.num_levels - 1
        if frequencies := self.config.input_frequencies:
            angles = [2 * math.pi * frequency * x for frequency in frequencies]
            waves = [wave for angle in angles for wave in (angle.sin(), angle.cos())]
            return torch.cat([x, *waves], 1)
        changes = [levels.diff(dim=dim, prepend=levels.narrow(dim, 0, 1)) for dim in (2, 3)]
        return torch.cat([x, *[(d / s).asinh() / 2 for s in SCALES for d in changes]], 1)

    def set_training_features(self, summaries: Tensor) -> None:
        """Set the summaries (N, 2 F) from which ``distance`` is measured."""
        values = summaries.double()
        self.centre.copy_(values.mean(0))
        covariance = torch.cov(values.T)
        ridge = 1e-4 * covariance.diagonal().mean().clamp(min=1e-12)
        covariance = covariance + ridge * torch.eye(len(covariance))
        factor = torch.linalg.cholesky(torch.linalg.inv(covariance) / len(covariance))
        self.whitening.copy_(factor.T)

    def distance(self, summary: Tensor) -> Tensor:
        """Return Mahalanobis distances (B,) of summaries (B, 2 F) from those of training images,
        scaled to a mean square of 1 over training images."""
        return ((summary - self.centre) @ self.whitening.T).norm(dim=1)

    @torch.no_grad()
    def predict(self, levels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the uncalibrated terms of log P of levels (B, C, H, W) in nats, float64, and the
        feature summaries (B, 2 F)."""
        batches = [self(rows.to(self.device)) for rows in levels.split(rows_per_call(levels))]
        terms, summaries = (torch.cat(column) for column in zip(*batches, strict=True))
        return terms.double(), summaries

    @torch.no_grad()
    def estimate(self, levels: Tensor) -> LogDensityEstimate:
        """Return the predicted log P of levels (B, C, H, W), with its error and its terms."""
        table = self.config.calibration
        if table is None:
            raise UserError(
                "The amortised likelihood is not calibrated. Finish its training with "
                "--resume_from_checkpoint latest."
            )
        terms, summary = self.predict(levels)
        terms = terms - table.offset / levels[0].numel()
        error = table.error_at(self.distance(summary).double())
        return LogDensityEstimate(sum_except_batch(terms), error, terms, 1)

    def save_pretrained(self, folder: Path) -> None:
        """Write the network in half precision, and its configuration."""
        folder.mkdir(parents=True, exist_ok=True)
        names = dict(self.named_parameters())
        state = self.state_dict().items()
        tensors = {name: value.half() if name in names else value for name, value in state}
        write_tensors(folder / WEIGHTS_FILE, tensors)
        self.save_config(folder)


@lru_cache(maxsize=4)
def _load(
    folder: Path, changed: int, device: torch.device, teacher: nn.Module
) -> AmortisedLikelihood:
    """Load the network in a folder, and check that it was distilled from ``teacher``."""
    network = AmortisedLikelihood.from_pretrained(folder, str(device))
    if network.config.teacher != fingerprint(teacher):
        raise UserError(
            f"{folder} was distilled from a model with different weights. Distil it again with "
            "train/distill.py MODEL --target likelihood."
        )
    return network


@configuration
class Amortised(Estimator):
    """Prediction of log P(image) by one pass of an ``AmortisedLikelihood``.

    Args:
        folder: folder of the network; by default ``amortised`` in the model's folder.

    ``error`` is the calibrated error of the prediction, larger for images unlike the network's
    training images.

    Raises (when called):
        UserError: if there is no such network, it was distilled from other weights, or there are
            labels.
    """

    folder: str | None = None

    needs: ClassVar[type] = PathDensity

    @classmethod
    def supports(cls, model: object) -> bool:
        """Return whether a model has a calibrated network distilled from its weights."""
        if not isinstance(model, PathDensity) or (folder := _folder_of(model, None)) is None:
            return False
        config = read_json(folder / CONFIG_FILE)
        is_calibrated = config.get("calibration") is not None
        return is_calibrated and config.get("teacher") == fingerprint(model.model)

    def log_prob_of_levels(
        self,
        model: PathDensity,
        levels: Tensor,
        cells: Cells,
        dequantiser: Dequantiser,
        noise: Tensor,
    ) -> LogDensityEstimate:
        """Return the predicted log P(levels). The dequantiser and its noise are unused, because
        the prediction is a mean over them."""
        folder = _folder_of(model, self.folder)
        if folder is None:
            raise UserError(
                "This model has no amortised likelihood. Train one with: python train/distill.py "
                f"MODEL --target likelihood --output_dir MODEL/{AMORTISED_FOLDER}"
            )
        if model.labels is not None:
            raise UserError("The estimator amortised does not support labels. Leave labels out.")
        changed = (folder / WEIGHTS_FILE).stat().st_mtime_ns
        return _load(folder, changed, levels.device, model.model).estimate(levels)


def _folder_of(model: PathDensity, folder: str | None) -> Path | None:
    """Return the folder of the network for a model, or None if there is none."""
    if folder is not None:
        path = Path(folder)
    elif model.folder is not None:
        path = model.folder / AMORTISED_FOLDER
    else:
        return None
    return path if (path / CONFIG_FILE).is_file() else None
