"""Markov chains, annealing and samplers. ``SAMPLERS`` maps names to samplers."""

from ebm_app.sampling.annealed_hmc import AnnealedHMC
from ebm_app.sampling.base import Sampler
from ebm_app.sampling.samplers import DPMSampler, ProbabilityFlowSampler

SAMPLERS: dict[str, type[Sampler]] = {
    "dpm": DPMSampler,
    "probability_flow": ProbabilityFlowSampler,
    "annealed_hmc": AnnealedHMC,
}
