"""Ways to draw from an energy-based model, by the name that ``--sampler`` takes.

All need a Stein score: the model's head, or the gradient of the time integral.
"""

from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.base import Sampler
from ebm_app.sampling.dpm import DPMSampler
from ebm_app.sampling.pf_ode import PFODESampler

SAMPLERS: dict[str, type[Sampler]] = {
    "dpm": DPMSampler,
    "pf_ode": PFODESampler,
    "annealed_hmc": AnnealedHMC,
}
