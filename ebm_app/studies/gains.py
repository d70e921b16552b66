"""Bits per dim of models on the same held-out images and draws, and what one gains over another.

Every model is scored twice: by the integral of its time score, which is normalised only as far as
that is exact, and on the first images by its probability-flow ODE, whose density always is.
"""

from dataclasses import dataclass

from accelerate import Accelerator
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.evaluation.bits_per_dim import bits_of_images
from ebm_app.flow import Flow
from ebm_app.likelihood import PFODEDensity
from ebm_app.numerics import standard_error

ESTIMATORS = ("ratio", "pf_ode")
#: bits per dim of the images, by estimator
Bits = dict[str, Tensor]


@dataclass(frozen=True)
class HeldOut:
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

    def bits_of(self, accelerator: Accelerator, ebm: EBM) -> Bits:
        """Of an energy model."""
        flow = PFODEDensity(num_steps=self.pf_ode_steps, num_probes=1, seed=self.seed)
        ratio = bits_of_images(accelerator, ebm, self.levels, self.noise, self.batch_size)
        few = bits_of_images(accelerator, ebm, *self.few, self.batch_size, estimator=flow)
        return {"ratio": ratio.bits_per_dim, "pf_ode": few.bits_per_dim}

    def bits_of_flow(self, accelerator: Accelerator, flow: Flow) -> Bits:
        """Of a flow, whose density needs no estimator."""
        return {
            "ratio": bits_of_images(accelerator, flow, self.levels, self.noise).bits_per_dim,
            "pf_ode": bits_of_images(accelerator, flow, *self.few).bits_per_dim,
        }


def figures_of(bits: Bits, base: Bits | None) -> dict[str, float]:
    """By estimator the mean, its standard error over images, and the gain: how much less than the
    base, if there is one, on the same images, with its own standard error."""
    gains = {} if base is None else {f"{name}_gain": base[name] - bits[name] for name in base}
    figures = {}
    for name, values in {**bits, **gains}.items():
        figures[name] = values.mean().item()
        figures[f"{name}_stderr"] = standard_error(values).item()
    return figures


def in_words(figures: dict[str, float], base: str) -> str:
    """The figures on one line."""
    return "  ".join(
        f"{name} {figures[name]:.4f} +- {figures[f'{name}_stderr']:.4f} "
        f"({figures[f'{name}_gain']:+.4f} +- {figures[f'{name}_gain_stderr']:.4f} under {base})"
        for name in ESTIMATORS
    )
