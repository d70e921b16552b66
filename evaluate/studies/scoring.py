"""Bits per dim of models on the same held-out images and noise, and the difference of two models.

Every model is scored by the integral of its time score, which is normalised only as far as that is
exact, and, where it has a Stein head, by the variational bound, which always is. The first images
are scored by the density of its probability-flow ODE too, which is normalised as well.
"""

from dataclasses import dataclass

from accelerate import Accelerator
from torch import Tensor

from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow
from ebm_app.image_models.scoring import bits_of_images
from ebm_app.likelihood import Estimator, PFODEDensity, VariationalBound
from ebm_app.numerics.tensors import standard_error
from studies.likelihood_speed import fixed_nodes, reference

#: bits per dim of the images, by estimator
Bits = dict[str, Tensor]


@dataclass(frozen=True)
class ScoredImages:
    """What models are scored on.

    Args:
        levels: (N, C, H, W). noise: (K, N, C, H, W).
        num_few: images that the probability flow scores, with the first draw of noise.
        pf_ode_steps: its steps, of the classical Runge-Kutta method. seed: of its probes.
        batch_size: images scored together.
    """

    levels: Tensor
    noise: Tensor
    num_few: int
    pf_ode_steps: int
    seed: int = 0
    batch_size: int = 128

    @property
    def few(self) -> tuple[Tensor, Tensor]:
        """The images and the draw of the probability flow."""
        return self.levels[: self.num_few], self.noise[:1, : self.num_few]

    def bits_of(self, accelerator: Accelerator, model: EBM | Flow) -> Bits:
        """Bits per dim by a model; the density of a flow needs no estimator."""

        def bits(estimator: str | Estimator, levels: Tensor, noise: Tensor) -> Tensor:
            options = {"estimator": estimator} if isinstance(model, EBM) else {}
            found = bits_of_images(accelerator, model, levels, noise, self.batch_size, **options)
            return found.bits_per_dim

        pf_ode = PFODEDensity(
            num_steps=self.pf_ode_steps, max_refinements=0, num_probes=1, seed=self.seed
        )
        found = {
            "ratio": bits("ratio", self.levels, self.noise),
            "pf_ode": bits(pf_ode, *self.few),
        }
        if not isinstance(model, EBM):
            return found | {"elbo": found["ratio"]}  # its density, whatever it is called
        if model.config.stein_head:
            found["elbo"] = bits(VariationalBound(seed=self.seed), self.levels, self.noise)
        return found

    def quadrature_error(self, ebm: EBM) -> float:
        """The largest error of the model's own quadrature rule over the few images, in bits per
        dim."""
        levels, noise = self.few
        y = ebm.dequantise(levels, noise[0]).y
        (found,) = fixed_nodes(ebm.energy, y, reference(ebm.energy, y), [ebm.energy.num_nodes])
        return found.error


def compared(bits: Bits, base: Bits | None) -> dict[str, float]:
    """By estimator the mean and its standard error over images, and, where there is a base, how
    much lower than the base that is on the same images, with its own standard error."""
    shared = [] if base is None else [name for name in bits if name in base]
    gains = {f"{name}_gain": base[name] - bits[name] for name in shared}
    metrics = {}
    for name, values in {**bits, **gains}.items():
        metrics[name] = values.mean().item()
        metrics[f"{name}_stderr"] = standard_error(values).item()
    return metrics
