"""Markov chains, annealing and samplers. ``SAMPLERS`` maps names to samplers."""

from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.base import Sampler
from ebm_app.sampling.flow import DPMSampler, PFODESampler

SAMPLERS: dict[str, type[Sampler]] = {
    "dpm": DPMSampler,
    "pf_ode": PFODESampler,
    "annealed_hmc": AnnealedHMC,
}
