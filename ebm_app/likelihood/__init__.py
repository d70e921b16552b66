"""Estimators of log p_t(x). ``ESTIMATORS`` maps the values of ``--estimator`` to classes.

They use different outputs of a model, so their disagreement indicates its error. All values are
in nats.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ebm_app.likelihood.elbo import VariationalBound
from ebm_app.likelihood.estimator import NEEDS, Estimator
from ebm_app.likelihood.path_integral import PathIntegral
from ebm_app.likelihood.probability_flow import ProbabilityFlowDensity
from ebm_app.likelihood.time_integral import EnergyEstimate, TimeIntegral
from ebm_app.nets.model import ScoreModel
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import make

ESTIMATORS: dict[str, type[Estimator]] = {
    "elbo": VariationalBound,
    "path_integral": PathIntegral,
    "probability_flow": ProbabilityFlowDensity,
    "time_integral": TimeIntegral,
    "energy": EnergyEstimate,
}


def name_of(estimator: Estimator) -> str:
    """Return the name of an estimator in ``ESTIMATORS``, or that of its class.

    >>> name_of(TimeIntegral())
    'time_integral'
    """
    names = {kind: name for name, kind in ESTIMATORS.items()}
    return names.get(type(estimator), type(estimator).__name__)


def check_estimator(estimator: Estimator, model: ScoreModel) -> None:
    """Raise a UserError if a model lacks what an estimator needs."""
    if not estimator.supports(model):
        raise UserError(
            f"Estimator {name_of(estimator)} needs {estimator.needs}, which this model lacks. "
            f"Available for {NEEDS[estimator.needs].models}."
        )


def make_estimator(
    name: str | Estimator, settings: Mapping[str, Any], call: Callable[..., Any] | None = None
) -> Estimator:
    """Return an estimator by its name and settings; an ``Estimator`` is returned unchanged.

    >>> make_estimator("elbo", {"num_draws": 4}).num_draws
    4

    Args:
        name: a key of ``ESTIMATORS``, or an estimator.
        call: function that received the settings as keyword arguments, see ``make``.

    Raises:
        UserError: for an unknown name or setting.
    """
    return make(ESTIMATORS, Estimator, "estimator", name, settings, call)
