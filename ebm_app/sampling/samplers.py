"""Ways to draw from an energy-based model, by the name that ``--sampler`` takes.

All need a Stein score: the model's head, or the gradient of the time integral.
"""

from ebm_app.sampling.base import Frame, Sampler
from ebm_app.sampling.energy_hmc import EnergyHMCSampler
from ebm_app.sampling.field_hmc import AnnealedHMCSampler
from ebm_app.sampling.pf_ode import PFODESampler

SAMPLERS: dict[str, type[Sampler]] = {
    "pf_ode": PFODESampler,
    "annealed_hmc": AnnealedHMCSampler,
    "annealed_hmc_energy": EnergyHMCSampler,
}

__all__ = [
    "SAMPLERS",
    "AnnealedHMCSampler",
    "EnergyHMCSampler",
    "Frame",
    "PFODESampler",
    "Sampler",
]
