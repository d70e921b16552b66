"""``EBM``: an energy-based model of images, its likelihoods and its samples."""

import math
import os
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

from ebm_app.data.levels import quantise
from ebm_app.folders import PIPELINE_FILE, find_folder
from ebm_app.likelihood import Estimator, make_estimator
from ebm_app.likelihood.bits import (
    MAX_BATCH_ELEMENTS,
    Likelihood,
    batches,
    checked_levels,
    checked_noise,
    likelihood_of,
)
from ebm_app.likelihood.classes import ClassBounds, ClassPosterior
from ebm_app.likelihood.dequantisation import (
    DEQUANTISERS,
    Dequantiser,
    dequantisation_noise,
)
from ebm_app.model import DensityModel
from ebm_app.nets.labelled import Labels, class_labels
from ebm_app.nets.pipeline_model import DiffusionDensity
from ebm_app.nets.time_score import PathNetwork
from ebm_app.sampling.base import Frame, in_batches
from ebm_app.sampling.samplers import SAMPLERS, Sampler
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import PositiveInt, Seed, check_argument
from ebm_app.utils.registry import build, make

#: numbers of the images of a call of ``sample``, and of those that are drawn together
MAX_DRAWN, DRAWN_TOGETHER = 2**24, 2**20
#: images whose classes are found together, by ten times as many points
MAX_CLASSIFIED = 50


class EBM(DensityModel):
    """An energy-based model of images, built from its configuration with fresh weights, or around
    a ``model`` given.

    >>> ebm = EBM.from_pretrained("digits")
    >>> images = ebm.sample(2, num_steps=3)
    >>> ebm.likelihood(images).bits_per_dim.shape
    torch.Size([2])
    """

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, device: str = "cpu") -> Self:
        folder = find_folder(name_or_path)
        if (folder / PIPELINE_FILE).is_file():
            return cls.from_diffusers(folder, device)
        return super().from_pretrained(folder, device)

    @classmethod
    def from_diffusers(cls, pipeline: Any, device: str = "cpu", num_levels: int = 256) -> Self:
        """The diffusion model of a pipeline of diffusers, with its own weights, not copies. It has
        no time score: its estimators are "elbo", "discrete" and "pf_ode".

        Args:
            pipeline: a ``DDPMPipeline`` or ``DDIMPipeline``; its folder or hub id, of which
                safetensors alone are read; or a pair of a ``UNet2DModel`` and its scheduler.
            num_levels: of the images that it was trained on, level k at 2 k / (num_levels - 1) - 1
                for the network.

        Raises:
            UserError: for another kind of pipeline, network or scheduler.
        """
        from ebm_app.nets.pipelines import read_pipeline  # importing diffusers takes a while

        model, config = read_pipeline(pipeline, num_levels)
        return cls(config, DiffusionDensity(model)).to(device).eval()

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        if not isinstance(self.model, PathNetwork):
            raise UserError("this model is diffusers' own: save its pipeline by save_pretrained")
        super().save_pretrained(folder)

    def likelihood(  # noqa: PLR0913 - independent options of one computation
        self,
        images: Tensor,
        estimator: str | Estimator | None = None,
        dequantiser: str | Dequantiser | None = None,
        noise: Tensor | None = None,
        repeats: int = 1,
        seed: int = 0,
        labels: Labels | None = None,
        batch_size: int | None = None,
        **estimator_args: Any,
    ) -> Likelihood:
        """A lower bound on the log-likelihood of quantised images, in nats and bits per dim; the
        equation is in ``ebm_app.likelihood.bits``. By default it is a bound for any network, since
        the density behind it is normalised.

        >>> ebm = EBM.from_pretrained("digits")
        >>> black = torch.zeros(1, 1, 8, 8)
        >>> ebm.likelihood(black, estimator="elbo", num_draws=1).nfe
        16

        Args:
            images: (B, C, H, W), floats in [0, 1] on the grid of the model's
                levels, or uint8 levels.
            estimator: of log p_t: a name in ``ESTIMATORS`` with its settings as
                ``estimator_args``, an object, or None for ``default_estimator``.
            dequantiser: a name in ``DEQUANTISERS``, an object, or None for the model's own.
            noise: (K, B, C, H, W) uniform numbers in [0, 1) for the dequantiser, whose K draws are
                averaged; None draws ``repeats`` of them.
            seed: of the noise drawn here, and of the estimator's own.
            labels: class labels (B,), for log P(image | label) by a model that was told them.
            batch_size: images that are scored together; None for as many as hold 2^17 numbers.
                Batches change the result by rounding alone, and that of ``pf_ode`` by its steps.

        Raises:
            UserError: for images of another shape or with values off the grid, unknown names or
                settings, noise of another shape, and a likelihood that is not finite.
        """
        config = self.config
        levels = checked_levels(images, config.image_shape, config.num_levels)
        if noise is None:
            noise = dequantisation_noise(repeats, levels, seed)
        noise = checked_noise(noise, levels, self.dtype)
        dequantiser = self.dequantiser if dequantiser is None else dequantiser
        dequantiser = make(DEQUANTISERS, Dequantiser, "dequantiser", dequantiser, {})
        estimator = self.default_estimator if estimator is None else estimator
        estimator = make_estimator(estimator, estimator_args, seed)
        labels = self._labels(labels, len(levels), seed)
        options = (config.num_levels, dequantiser)
        estimates, num_dims = [], levels[0].numel()
        for rows in batches(len(levels), batch_size, MAX_BATCH_ELEMENTS // num_dims):
            density = self.density_for(len(levels[rows]), labels and labels[rows])
            batch, u = levels[rows].to(self.device), noise[:, rows].to(self.device)
            estimates.append(estimator.log_prob_of_levels(density, self.space, batch, *options, u))
        return likelihood_of(estimates, num_dims)

    def log_prob(self, images: Tensor, **options: Any) -> Tensor:
        """Return the log-likelihood of quantised images in nats: (B, C, H, W) -> (B,).

        >>> EBM.from_pretrained("digits").log_prob(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2])

        Args:
            images, options: as for ``likelihood``, which also returns bits, errors and costs.
        """
        return self.likelihood(images, **options).log_prob

    def classify(self, images: Tensor, seed: int = 0, **settings: Any) -> ClassPosterior:
        """Probabilities of the classes of images, p(y | x) for classes that are equally frequent;
        the equation is in ``ebm_app.likelihood.classes``.

        Args:
            images: (B, C, H, W), as for ``log_prob``. seed: of the noise.
            settings: of ``ClassBounds``.

        Raises:
            UserError: for a model that was trained without class labels, and as ``log_prob``.
        """
        config = self.config
        levels = checked_levels(images, config.image_shape, config.num_levels)
        if not config.num_classes:
            raise UserError("this model was trained without class labels: it tells no classes")
        noise = dequantisation_noise(1, levels, seed)
        point = self.dequantise(levels, checked_noise(noise, levels, self.dtype)[0])
        highest = config.early.max_log_snr if config.early else ClassBounds.max_log_snr
        bounds = build(
            ClassBounds, "class bounds", {"max_log_snr": highest, "seed": seed, **settings}
        )
        parts = [
            bounds(self.model, y, point.t, config.num_classes)
            for y in point.y.split(MAX_CLASSIFIED)
        ]
        return ClassPosterior(*(torch.cat(column) for column in zip(*parts, strict=True)))

    @property
    def default_estimator(self) -> str:
        """The estimator that leads: the variational bound where the model has a Stein head, which
        is normalised; without a head the integral of the time score, which is not."""
        return "elbo" if self.config.stein_head else "time_integral"

    def sample(
        self,
        num_images: int,
        sampler: str | Sampler = "dpm",
        seed: int = 0,
        labels: Labels | None = None,
        guidance: float = 1.0,
        batch_size: int | None = None,
        **settings: Any,
    ) -> Tensor:
        """Draw images (num_images, C, H, W), quantised to the model's levels, in [0, 1].

        >>> EBM.from_pretrained("digits").sample(2, sampler="dpm", num_steps=3).shape
        torch.Size([2, 1, 8, 8])

        Args:
            sampler: a name in ``SAMPLERS``, with its ``settings``, or a sampler.
            seed: of the start and of the sampler's own noise.
            labels: class labels of what is drawn, by a model that was told them: one for all
                images, several that take turns, or "random" for one drawn for each image.
            guidance: see ``LabelledModel``; 1 draws from p(x | label), more is clearer and less
                varied.
            batch_size: images that are drawn together, by the same starts; None for as many as
                hold 2^20 numbers. What a sampler draws of its own depends on the batches.

        Raises:
            UserError: for labels that the model has not, and guidance below 0 or without labels.
        """
        given = (num_images, sampler, seed, labels, guidance, batch_size)
        *_, last = self.iterate_sample(*given, **settings)
        return self.to_images(last.x)

    def iterate_sample(
        self,
        num_images: int,
        sampler: str | Sampler = "dpm",
        seed: int = 0,
        labels: Labels | None = None,
        guidance: float = 1.0,
        batch_size: int | None = None,
        **settings: Any,
    ) -> Iterator[Frame]:
        """The frames of ``sample``, in the space of the path; each holds all images, of which
        those of later batches are still noise."""
        generator, x0 = self.start(num_images, seed)
        parts = batches(num_images, batch_size, DRAWN_TOGETHER // x0[0].numel())
        labels = self._labels(labels, num_images, seed)
        sampler = make(SAMPLERS, Sampler, "sampler", sampler, settings)
        densities = [
            self.density_for(len(x0[rows]), labels and labels[rows], guidance) for rows in parts
        ]
        return in_batches(sampler, densities, parts, x0, generator)

    def _labels(self, labels: Labels | None, num: int, seed: int) -> list[int] | None:
        """A label for each of ``num`` images, if any are given."""
        if labels is None:
            return None
        return class_labels(labels, num, self.config.num_classes, seed).tolist()

    def start(self, num_images: int, seed: int) -> tuple[torch.Generator, Tensor]:
        """Draws of N(0, I) and the generator that they are from."""
        num_images = check_argument(PositiveInt, "num_images", num_images)
        shape = (num_images, *self.config.image_shape)
        if math.prod(shape) > MAX_DRAWN:
            most = MAX_DRAWN // math.prod(self.config.image_shape)
            raise UserError(
                f"{num_images} images do not fit the memory at once: draw at most {most}, more in "
                "several calls of other seeds"
            )
        generator = torch.Generator(self.device).manual_seed(check_argument(Seed, "seed", seed))
        options = {"device": self.device, "dtype": self.dtype, "generator": generator}
        return generator, torch.randn(shape, **options)

    def to_images(self, x: Tensor) -> Tensor:
        """Points of the path's space as quantised images in [0, 1], on the CPU."""
        return quantise(self.space.decode(self.points(x).detach()), self.config.num_levels).cpu()
