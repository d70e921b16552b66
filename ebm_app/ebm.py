"""``EBM``: an energy-based model of images, with likelihoods and samples."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Self

import torch
from annotated_types import Le
from torch import Tensor

from ebm_app.config import EBMConfig, PathConfig
from ebm_app.data.labels import Labels, labels_of_images, labels_of_samples
from ebm_app.data.levels import checked_levels, quantise_samples
from ebm_app.likelihood import (
    Estimator,
    VariationalBound,
    check_estimator,
    make_estimator,
    name_of,
)
from ebm_app.likelihood.bits import (
    NUM_COMPARED,
    Likelihood,
    add_cells,
    batches,
    checked_indices,
    images_per_batch,
    mean_likelihood,
    warn_of_disagreement,
)
from ebm_app.likelihood.dequantisation import DEQUANTISERS, Cells, Dequantised
from ebm_app.nets.build import build_model
from ebm_app.nets.denoisers import AlphaSigma, Denoiser, DenoiserModel, read_pipeline
from ebm_app.nets.model import LogDensityEstimate, ScoreModel, Time, TimeScoreModel, checked_time
from ebm_app.paths import require_one_sided
from ebm_app.pretrained import (
    ENERGY_MODEL,
    PretrainedModel,
    available_device,
    find_folder,
    is_pipeline,
)
from ebm_app.sampling import SAMPLERS, Sampler
from ebm_app.sampling.base import Frame, iterate_batches
from ebm_app.spaces import build_space
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import (
    Draws,
    ImageShape,
    NonNegative,
    NumLevels,
    Positive,
    PositiveInt,
    Seed,
    check_argument,
)
from ebm_app.utils.output import progress
from ebm_app.utils.random import LIKELIHOODS, SAMPLES, ImageNoise, Noise
from ebm_app.utils.registry import choose, make

#: Max elements (images times values per image) of a batch of ``sample``
MAX_BATCH_DRAWN = 2**20


class EBM(PretrainedModel):
    """Energy-based model of images: likelihoods, energies, scores, samples and classes.

    A loaded model is in evaluation mode. Call ``eval()`` on a model that you build from a
    configuration, or its dropout is active.

    Args:
        config: configuration.
        model: model of the marginals p_t in the space of the path. Default: built from ``config``
            with random weights.

    Raises:
        UserError: for incompatible settings.

    >>> ebm = EBM.from_pretrained("digits")
    >>> images = ebm.sample(2, num_steps=3)
    >>> ebm.log_prob(images).shape, ebm.likelihood(images).bits_per_dim.shape
    (torch.Size([2]), torch.Size([2]))
    """

    config_class, kind = EBMConfig, ENERGY_MODEL

    def __init__(self, config: EBMConfig, model: ScoreModel | None = None) -> None:
        super().__init__(config)
        choose("dequantisation", config.dequantisation, DEQUANTISERS)
        self.space = build_space(config.space, config.image_shape, config.num_levels)
        self.cells = Cells(config.num_levels, self.space)
        self.dequantiser = DEQUANTISERS[config.dequantisation]()
        model = build_model(config, self.space) if model is None else model
        self.model = check_argument(ScoreModel, "model", model)

    @classmethod
    def from_pretrained(cls, name_or_path: str | os.PathLike, device: str = "cpu") -> Self:
        folder = find_folder(name_or_path)
        if is_pipeline(folder):
            return cls.from_diffusers(folder, device)
        return super().from_pretrained(folder, device)

    @classmethod
    def from_denoiser(
        cls,
        net: Denoiser,
        image_shape: tuple[int, int, int],
        prediction: str,
        schedule: AlphaSigma,
        num_levels: int = 256,
        device: str | None = None,
    ) -> Self:
        r"""Wrap a denoising network of any library without copying its weights: a diffusion model
        or a flow matching model on x_u = alpha_u x1 + sigma_u e, where e ~ N(0, I). It has no time
        score, so the available estimators are "elbo" and "probability_flow".

        >>> from ebm_app import AlphaSigma
        >>> def net(x, u):  # E[e - x1 | x] for images x1 = 0
        ...     return x / u.reshape(-1, 1, 1, 1)
        >>> schedule = AlphaSigma(lambda u: 1 - u, lambda u: u, t_noise=0.999, t_data=0.005)
        >>> ebm = EBM.from_denoiser(net, (1, 8, 8), "velocity", schedule)
        >>> ebm.log_prob(torch.full((1, 1, 8, 8), 127 / 255)).shape
        torch.Size([1])

        Args:
            net: (x (B, C, H, W), time u (B,)) -> prediction (B, C, H, W). x has the scale of x_u
                for images x1 in [-1, 1]: level k of L is 2 k / (L - 1) - 1. A module is set to
                evaluation mode. If you pass a function of a module ``net``, call ``net.eval()``.
            image_shape: (C, H, W).
            prediction: what the network predicts: "noise", E[e | x_u]; "x0", E[x1 | x_u]; "v",
                E[alpha e - sigma x1 | x_u]; "velocity", E[dx_u/du | x_u]; or "score", grad log
                p_u(x_u).
            schedule: ``AlphasCumprod`` for discrete steps, or ``AlphaSigma`` for functions alpha
                and sigma of a continuous time.
            num_levels: number of grey levels L of the training images.
            device: device to which the network is moved. Default: the device of its weights; the
                CPU for a function.

        Raises:
            UserError: for a prediction or schedule that is not supported, and when the network is
                evaluated, for a prediction of another shape.
        """
        model = DenoiserModel(net, prediction, schedule)
        return cls._of_denoiser(model, "denoiser", image_shape, num_levels, device)

    @classmethod
    def from_diffusers(
        cls, pipeline: Any, device: str | None = None, num_levels: int = 256
    ) -> Self:
        """Wrap the diffusion model of a diffusers pipeline, see ``from_denoiser``.

        Args:
            pipeline: a ``DDPMPipeline`` or ``DDIMPipeline``; the folder or hub id of one, with
                safetensors weights; or a pair of a ``UNet2DModel`` and a scheduler.
            device, num_levels: as for ``from_denoiser``.

        Raises:
            UserError: for an unsupported pipeline, network or scheduler.
        """
        model, image_shape = read_pipeline(pipeline)
        return cls._of_denoiser(model, "diffusers", image_shape, num_levels, device)

    @classmethod
    def _of_denoiser(
        cls,
        model: DenoiserModel,
        dataset: str,
        image_shape: tuple[int, int, int],
        num_levels: int,
        device: str | None,
    ) -> Self:
        shape = check_argument(ImageShape, "image_shape", image_shape)
        levels = check_argument(NumLevels, "num_levels", num_levels)
        settings = {"space": "display", "dequantisation": "decoder"}
        config = EBMConfig(dataset, shape, levels, path=PathConfig("denoiser"), **settings)
        ebm = cls(config, model).eval()
        return ebm if device is None else ebm.to(available_device(device))

    def save_pretrained(self, folder: str | os.PathLike) -> None:
        if not isinstance(self.model, TimeScoreModel):
            raise UserError("This model is a denoiser. Save its network or pipeline instead.")
        super().save_pretrained(folder)

    def energy(self, x: Tensor, t: Time = 1.0) -> Tensor:
        """Return the energy -log p_t(x) in nats, up to log Z if the model is unnormalised.

        It is a density at a point, not the probability -``log_prob`` of an image. Except for
        energy networks, it is the integral of the time score at x, as by the estimator
        "time_integral", which can differ from "elbo" by hundreds of nats. Use ``likelihood`` for
        likelihoods, and the energy for its gradients.

        >>> ebm = EBM.from_pretrained("digits-energy")
        >>> ebm.energy(ebm.encode(torch.zeros(2, 1, 8, 8))).shape
        torch.Size([2])

        Args:
            x: (B, C, H, W), points in the space of the model, not images in [0, 1]; ``encode``
                maps images to points. Gradients are computed if ``x`` requires them.
            t: time from 0 (reference) to 1 (data), or times (B,), clamped to the model's last time
                1 - t_margin.

        Returns:
            (B,) float64.

        Raises:
            UserError: for points of the wrong shape, a time outside [0, 1], and a denoiser,
                which has no log density.
        """
        return -self._evaluate(self._time_score_model("energy").log_density, x, t)

    def score(self, x: Tensor, t: Time = 1.0) -> Tensor:
        """Return the Stein score grad_x log p_t(x), (B, C, H, W), in nats per unit of x.

        Args:
            x, t: as for ``energy``.

        Raises:
            UserError: for points of the wrong shape, and a time outside [0, 1].
        """
        return self._evaluate(self.model.score, x, t)

    def time_score(self, x: Tensor, t: Time) -> Tensor:
        """Return the time score d/dt log p_t(x), (B,) float64, in nats per unit of t.

        Args:
            x, t: as for ``energy``.

        Raises:
            UserError: for points of the wrong shape, a time outside [0, 1], and a denoiser,
                which has no time score.
        """
        return self._evaluate(self._time_score_model("time_score").time_score, x, t)

    def _time_score_model(self, method: str) -> TimeScoreModel:
        """Return the model, or raise a UserError that names a method if it is a denoiser."""
        if isinstance(self.model, TimeScoreModel):
            return self.model
        raise UserError(f"A denoiser has no time score, so `{method}` is unavailable.")

    def _evaluate(self, function: Callable[[Tensor, Time], Tensor], x: Tensor, t: Time) -> Tensor:
        """Evaluate a function of (x, t) in the dtype of the model, with gradients only if ``x``
        requires them."""
        x = self.points(x).to(self.dtype)
        t = checked_time(t, len(x), self.model.end)
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return function(x, t)

    def encode(self, images: Tensor, seed: int = 0) -> Tensor:
        """Dequantise images, and map them to points in the space of the model.

        >>> EBM.from_pretrained("digits").encode(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 1, 8, 8])

        Args:
            images: (B, C, H, W), as for ``EBM.likelihood``.
            seed: seed of the dequantisation noise.

        Returns:
            (B, C, H, W), points for ``energy``, ``score`` and ``time_score``.
        """
        levels = self.levels_of(images)
        noise = ImageNoise(check_argument(Seed, "seed", seed), range(len(levels)), LIKELIHOODS)
        return self.dequantise(levels, noise).y

    def levels_of(self, images: Any) -> Tensor:
        """Return the grey levels (B, C, H, W) of images, see ``checked_levels``."""
        return checked_levels(images, self.config.image_shape, self.config.num_levels)

    def dequantise(
        self, levels: Tensor, noise: Noise, model: ScoreModel | None = None
    ) -> Dequantised:
        """Draw points (B, *) from the model's dequantiser, on the model's device.

        Args:
            levels: (B, C, H, W) grey levels.
            noise: source of random numbers for B images.
            model: model of these images, see ``model_for``. Default: without labels.
        """
        levels, model = levels.to(self.device), self.model if model is None else model
        uniform = noise.uniform_like(levels.to(self.dtype))
        return self.dequantiser.points(levels, self.cells, uniform, model)

    def model_for(self, labels: Tensor | None, guidance_scale: float = 1.0) -> ScoreModel:
        """Return the model of B points, conditional on their class indices (B,), if any."""
        if labels is not None:
            return self.model.conditioned_on(labels, guidance_scale)
        if check_argument(NonNegative, "guidance_scale", guidance_scale) != 1:
            raise UserError("Guidance needs class labels. Pass labels.")
        return self.model

    def likelihood(
        self,
        images: Tensor,
        estimator: str | Estimator | None = None,
        repeats: int = 1,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        labels: Labels | None = None,
        batch_size: int | None = None,
        **estimator_args: Any,
    ) -> Likelihood:
        """Return the log-likelihood of quantised images, in nats and in bits per dim, see
        ``ebm_app.likelihood.bits``. The default estimator "elbo" gives a lower bound for any
        network; the others give bounds only if the network is exact.

        >>> ebm = EBM.from_pretrained("digits")
        >>> black = torch.zeros(1, 1, 8, 8)
        >>> ebm.likelihood(black, estimator="elbo", num_draws=4).nfe
        64

        Args:
            images: (B, C, H, W), uint8 grey levels, or floats level / (num_levels - 1) in [0, 1].
            estimator: name in ``ESTIMATORS`` with settings ``estimator_args``, or an estimator.
                Default: ``default_estimator``.
            repeats: number of draws of the dequantiser and of the estimator's noise, which are
                averaged. The cost is proportional to it.
            seed: seed of the draws.
            indices: (B,), the noise of an image depends on the seed and its index. Default: 0 to
                B - 1.
            labels: one label for all images or one per image, for log P(image | label) of a
                class-conditional model, see ``class_labels``.
            batch_size: images per batch. Default: as many as fit in 2^17 elements, or 2^14 on a
                CPU. It only changes results by rounding, and by the shared steps of
                ``probability_flow`` with dopri5.

        Warns:
            UserWarning: if an estimator that may not be normalised differs from "elbo" by more
                than their errors, on the first 4 images. It is not checked if ``indices`` are
                given.

        Raises:
            UserError: for images of the wrong shape, values that are not grey levels, unknown
                names or settings, and a non-finite likelihood.
        """
        levels = self.levels_of(images)
        estimator = self.default_estimator if estimator is None else estimator
        estimator = make_estimator(estimator, estimator_args, self.likelihood)
        check_estimator(estimator, self.model)
        if labels is not None:
            labels = labels_of_images(labels, len(levels), self.config.classes())
        num_dims = levels[0].numel()

        def evaluate(estimator: Estimator, num: int, repeats: int) -> Likelihood:
            """Return the likelihood of the first images."""

            def draw(rows: slice, noise: ImageNoise) -> LogDensityEstimate:
                model = self.model_for(None if labels is None else labels[rows])
                point = self.dequantise(levels[rows], noise, model)
                return add_cells(estimator(model, point.y, point.t, noise), point)

            rows = batches(num, batch_size, images_per_batch(num_dims, self.device))
            place = seed, checked_indices(indices, len(levels))[:num]
            form = estimator.error_is_drawn, num_dims, name_of(estimator)
            return mean_likelihood(draw, rows, *place, repeats, *form)

        result = evaluate(estimator, len(levels), repeats)
        if indices is None and not estimator.is_normalised and self.default_estimator == "elbo":
            bound = evaluate(VariationalBound(), min(NUM_COMPARED, len(levels)), 4)
            warn_of_disagreement(name_of(estimator), result, bound, num_dims)
        return result

    def classify(
        self,
        images: Tensor,
        seed: int = 0,
        num_draws: int = 4,
        noise_std: float = 0.2,
        batch_size: int | None = None,
    ) -> Tensor:
        """Return the probabilities of all classes, (B, K), for equally frequent classes,

            p(y | x) = p(x | y) / sum_k p(x | k),

        at an image x with noise, for which log p is the mean of ``default_estimator`` over
        ``num_draws`` draws. Classes hardly differ in the details that the noise hides, but these
        dominate the error of log p: with one draw, 91 of 100 validation images of MNIST are
        classified correctly with noise of 0.2, and 77 without.

        >>> ebm = EBM.from_pretrained("digits")
        >>> ebm.classify(ebm.sample(1, labels=3, guidance_scale=1.5)).argmax(1)
        tensor([3])

        Args:
            images: (B, C, H, W), as for ``likelihood``.
            seed: seed of the noise.
            num_draws: number of draws. The cost is proportional to it.
            noise_std: standard deviation of the noise, at most 100, where pixels are in [-1, 1].
            batch_size: images per batch, as for ``likelihood``.

        Raises:
            UserError: for a model trained without labels, and invalid images.
        """
        num_classes = self.config.num_classes
        if not num_classes:
            raise UserError("This model was trained without labels, so classify() is unavailable.")
        num_draws = check_argument(Draws, "num_draws", num_draws)
        noise_std = check_argument(Annotated[Positive, Le(100)], "noise_std", noise_std)
        levels = self.levels_of(images)
        seed, indices = check_argument(Seed, "seed", seed), range(len(levels))
        estimator = make_estimator(self.default_estimator, {})
        path, probabilities = require_one_sided(self.model.path), []
        default = images_per_batch(levels[0].numel(), self.device)
        with progress("classify", num_draws * len(levels)) as bar:
            for rows in batches(len(levels), batch_size, default):
                log_prob = torch.zeros(len(indices[rows]), num_classes, dtype=torch.float64)
                for k in range(num_draws):
                    noise = ImageNoise(seed, indices[rows], LIKELIHOODS, k)
                    point = self.dequantise(levels[rows], noise)
                    x, t = path.diffuse(point.y, point.t, noise_std, noise.normal_like(point.y))
                    for label in range(num_classes):
                        model = self.model_for(torch.full((len(x),), label, device=x.device))
                        # the same noise for all classes
                        noise = ImageNoise(seed, indices[rows], LIKELIHOODS, num_draws + k)
                        log_prob[:, label] += estimator(model, x, t, noise).value.cpu() / num_draws
                    bar.update(len(x))
                probabilities.append(log_prob.softmax(1))
        return torch.cat(probabilities)

    @property
    def default_estimator(self) -> str:
        """Name of the default estimator: "elbo", or the unnormalised "time_integral" for a model
        without a Stein head."""
        return "elbo" if self.config.stein_head else "time_integral"

    def sample(
        self,
        num_images: int,
        sampler: str | Sampler = "dpm",
        seed: int = 0,
        labels: Labels | None = None,
        guidance_scale: float = 1.0,
        batch_size: int | None = None,
        **settings: Any,
    ) -> Tensor:
        """Draw images (num_images, C, H, W) in [0, 1], quantised to the model's grey levels.

        >>> ebm = EBM.from_pretrained("digits")
        >>> ebm.sample(2, sampler="dpm", num_steps=3).shape
        torch.Size([2, 1, 8, 8])

        Args:
            sampler: name in ``SAMPLERS`` with settings ``settings``, or a sampler.
            seed: seed of all noise. The noise of an image depends on the seed and its index.
            labels: names or numbers of classes, for a class-conditional model: one for all images,
                or several used in turn, see ``class_labels``; or "none" for the model without
                labels. Default: random labels with the class frequencies of the training images.
            guidance_scale: guidance scale, see ``ScoreModel.conditioned_on``. 1 samples from
                p(x | label), larger values give clearer and less varied images.
            batch_size: images per batch. Default: as many as fit in 2^20 elements. It only changes
                samples by rounding, and by the shared steps of ``method=dopri5``.

        Raises:
            UserError: for labels that the model does not have, and a guidance scale below 0 or
                without labels.
        """
        frames = self.iterate_sample(
            num_images, sampler, seed, labels, guidance_scale, batch_size, **settings
        )
        with progress("sample") as bar:
            for last in frames:
                bar.total = last.num_steps
                bar.update(last.step - bar.n)
        return self.to_images(last.x)

    def iterate_sample(
        self,
        num_images: int,
        sampler: str | Sampler = "dpm",
        seed: int = 0,
        labels: Labels | None = None,
        guidance_scale: float = 1.0,
        batch_size: int | None = None,
        **settings: Any,
    ) -> Iterator[Frame]:
        """Iterate over the steps of ``sample``, as frames of points in the space of the path. Each
        frame has all images; later batches are still noise."""
        num_images = check_argument(PositiveInt, "num_images", num_images)
        noise = ImageNoise(check_argument(Seed, "seed", seed), range(num_images), SAMPLES)
        shape = (num_images, *self.config.image_shape)
        x = noise.normal_like(torch.empty(shape, device=self.device, dtype=self.dtype))
        slices = batches(num_images, batch_size, MAX_BATCH_DRAWN // x[0].numel())
        classes, frequencies = self.config.classes(), self.config.class_frequencies
        indices = labels_of_samples(labels, num_images, classes, frequencies, seed)
        sampler = make(SAMPLERS, Sampler, "sampler", sampler, settings, self.sample)

        def model_of(rows: slice) -> ScoreModel:
            return self.model_for(None if indices is None else indices[rows], guidance_scale)

        return iterate_batches(sampler, model_of, x, noise, slices)

    def to_images(self, x: Tensor) -> Tensor:
        """Decode points in the path's space into quantised images in [0, 1], on the CPU."""
        decoded = self.space.decode(self.points(x).detach())
        return quantise_samples(decoded, self.config.num_levels).cpu()
