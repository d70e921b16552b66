"""A run that starts from the weights of a model instead of fresh ones."""

import os
from dataclasses import fields

import torch

from ebm_app.image_models.ebm import EBM
from ebm_app.image_models.flow import Flow, FlowConfig
from ebm_app.io.errors import UserError
from ebm_app.io.records import to_dict
from ebm_app.models.config import EBMConfig, changes_of
from ebm_app.models.folders import WEIGHTS_FILE, find_folder, load_weights, read_config

#: what may differ between the model and the run that starts from it
FREE = frozenset({"dataset", "num_nodes", "eps", "dequantisation", "early", "num_classes"})


def start_from(ebm: EBM, name_or_path: str | os.PathLike) -> None:
    """Give a model the weights of another one: a folder, a bundled name or a hub id.

    Raises:
        UserError: where none is found, or its configuration or its flow is another one.
    """
    folder = find_folder(name_or_path)
    theirs = to_dict(read_config(EBMConfig, folder))
    changes = changes_of(theirs, to_dict(ebm.config), FREE)
    if changes:
        raise UserError(
            f"this run's model is not that of {name_or_path} ({'; '.join(changes)}): give its "
            "settings, or its run.json with --config"
        )
    space = {name: tensor.clone() for name, tensor in ebm.space.state_dict().items()}
    if ebm.config.early and not theirs["early"]:  # the early network is new
        given = EBM.from_pretrained(folder)
        ebm.model.net.late.load_state_dict(given.model.net.state_dict())
        ebm.space.load_state_dict(given.space.state_dict())
    else:
        load_weights(ebm, folder / WEIGHTS_FILE)
    if not all(torch.equal(space[name], now) for name, now in ebm.space.state_dict().items()):
        raise UserError(f"{name_or_path} lives in the latent space of another flow: give that one")


def flow_of(name_or_path: str | os.PathLike | None) -> Flow | None:
    """The flow in whose latent space a model lives; None in the ambient space, and of no model.

    >>> flow_of("digits") is None, flow_of("mnist-latent").config.space
    (True, 'copula')
    """
    if name_or_path is None:
        return None
    config = read_config(EBMConfig, find_folder(name_or_path))
    if config.space == EBMConfig.space:
        return None
    flow = Flow(
        FlowConfig(**{field.name: getattr(config, field.name) for field in fields(FlowConfig)})
    )
    flow.space.load_state_dict(EBM.from_pretrained(name_or_path).space.state_dict())
    return flow
