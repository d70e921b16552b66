"""log Z of a model by annealed paths, level by level."""

from collections.abc import Iterator

import torch
from matplotlib.figure import Figure

from ebm_app.errors import UserError
from ebm_app.likelihood.bits import to_bits_per_dim
from ebm_app.log_z.ais import Annealing, Chains, ChainState
from ebm_app.log_z.estimates import from_forward
from ebm_app.log_z.plots import temperatures_figure
from ebm_app.registry import choose

from ..shared import RUNNING, Load

#: kinds of paths by the name a visitor chooses, for a number of levels
METHODS = {
    "transported": lambda levels: Annealing(levels, steps_per_temperature=1, pf_ode_steps=1),
    "ais": lambda levels: Annealing(levels, steps_per_temperature=1, num_leapfrog_steps=4),
}
MAX_CHAINS, MAX_LEVELS, DEFAULT_CHAINS, DEFAULT_LEVELS = 64, 100, 8, 16
NUM_PILOT = 4


def log_z(
    load: Load, model: str, method: str, num_chains: int, num_levels: int, seed: int
) -> Iterator[tuple[Figure | None, str]]:
    """Carry chains from noise to a model: (log-weights and acceptance by level, a text).

    Args:
        load: the model of a name. method: a key of ``METHODS``. seed: of all noise.

    Raises:
        UserError: for an unknown method, or a number out of range.
    """
    settings = METHODS[choose("method", method, METHODS)](int(num_levels))
    if not 2 <= num_chains <= MAX_CHAINS or not 2 <= num_levels <= MAX_LEVELS:
        raise UserError(
            f"{num_chains} chains over {num_levels} levels are not possible: give 2 to "
            f"{MAX_CHAINS} chains and 2 to {MAX_LEVELS} levels"
        )
    ebm = load(model)
    generator = torch.Generator(ebm.device).manual_seed(seed)
    noise = torch.randn(
        (NUM_PILOT + num_chains, *ebm.config.image_shape), device=ebm.device, generator=generator
    )
    label = f"{model} · {method} · {num_chains} chains · seed {seed}"
    paths = Chains(ebm.energy, settings)
    pilot, total = len(paths.targets), len(paths.targets) + paths.num_levels
    yield None, f"{RUNNING} 0 of {total} · {label}"
    for level in paths.iterate_tune(noise[:NUM_PILOT], generator):
        yield None, f"{RUNNING} {level} of {total}, a pilot's · {label}"
    start = paths.start(noise[NUM_PILOT:], generator, is_reverse=False)
    for state in paths.run(start, generator, is_reverse=False):
        figure = temperatures_figure(state.log_weight.cpu(), state.acceptance, paths.num_levels)
        yield figure, f"{RUNNING} {pilot + len(state.acceptance)} of {total} · {label}"
    yield figure, f"{report(state)}\n{label}"


def report(state: ChainState) -> str:
    """The estimate by paths that have passed all levels, with its doubts."""
    estimate = from_forward(state.log_weight[-1].cpu())
    nats = -torch.tensor([estimate.log_z, estimate.stderr])
    shift, error = to_bits_per_dim(nats, state.position[0].numel()).tolist()
    moved = state.acceptance[~state.acceptance.isnan()]
    return "\n".join(
        [
            f"log Z: {estimate.log_z:+.2f} ± {estimate.stderr:.2f} nats; normalised by it, a "
            f"likelihood changes by {shift:+.4f} ± {error:.4f} bits per dim",
            f"Effective sample size {estimate.ess:.1f} of {estimate.num}, acceptance "
            f"{moved.mean().item():.2f}",
            *(f"Warning: {warning}" for warning in estimate.warnings),
        ]
    )
