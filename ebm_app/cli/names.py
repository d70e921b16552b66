"""Names of registered classes, to check flags before slow imports."""

import sys

from ebm_app.utils.registry import choose

#: Names and aliases by setting; tests compare them with the registries
NAMES = {
    "estimator": "elbo path_integral probability_flow time_integral energy discrete amortised "
    "noised pf_ode ratio paper",
    "sampler": "dpm pf_ode annealed_hmc",
    "objective": "ctsm ctsm_v ctsm_m tsm dual",
    "path": "linear_vp vp schrodinger_bridge",
    "space": "ambient display gaussian copula spline",
    "dequantisation": "uniform truncated_normal decoder",
    "augmentation": "none flip affine",
    "optimizer": "adam muon",
}


def check_name(kind: str, name: str, *others: str) -> None:
    """Raise a UserError for a name that is neither registered nor in ``others``. If a module of
    ``--import`` may have registered classes, the name is not checked."""
    if "torch" not in sys.modules:
        choose(kind, name, [*NAMES[kind].split(), *others])
