"""A run that starts from the weights of a model instead of fresh ones."""

import os

import torch

from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow, FlowConfig
from ebm_app.io.errors import UserError
from ebm_app.io.fields import part
from ebm_app.io.records import to_dict
from ebm_app.models.config import EBMConfig, changes_of

#: what may differ between the model and the run that starts from it
FREE = frozenset({"dataset", "num_nodes", "eps", "dequantisation"})
#: and where the run adds an early network, which alone reads the labels
FREE_OF_EARLY = FREE | {"early", "num_classes"}


def start_from(ebm: EBM, name_or_path: str | os.PathLike) -> None:
    """Give a model the weights of another one: a folder, a bundled name or a hub id.

    Raises:
        UserError: where none is found, or its configuration or its flow is another one.
    """
    given = EBM.from_pretrained(name_or_path)
    is_new = ebm.config.early is not None and given.config.early is None
    free = FREE_OF_EARLY if is_new else FREE
    if changes := changes_of(to_dict(given.config), to_dict(ebm.config), free):
        raise UserError(
            f"this run's model is not that of {name_or_path} ({'; '.join(changes)}): give its "
            "settings, or its run.json with --config"
        )
    space = ebm.space.state_dict()
    if not all(torch.equal(space[key].cpu(), v) for key, v in given.space.state_dict().items()):
        raise UserError(f"{name_or_path} lives in the latent space of another flow: give that one")
    if is_new:
        ebm.model.net.late.load_state_dict(given.model.net.state_dict())
    else:
        ebm.load_state_dict(given.state_dict())


def flow_of(name_or_path: str | os.PathLike | None) -> Flow | None:
    """The flow in whose latent space a model lives; None in the ambient space, and of no model.

    >>> flow_of("digits") is None, flow_of("mnist-latent").config.space
    (True, 'copula')
    """
    if name_or_path is None:
        return None
    ebm = EBM.from_pretrained(name_or_path)
    if ebm.config.space == EBMConfig.space:
        return None
    flow = Flow(part(FlowConfig, ebm.config))
    flow.space = ebm.space
    return flow
