"""``train``: train an energy-based model on a tensor of images."""

import os
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.training.checkpoint import recorded_settings
from ebm_app.training.ebm_task import EBMTask
from ebm_app.training.launch import latent_flow, launch
from ebm_app.training.plan import RunOptions, flags_on_resume
from ebm_app.training.settings import resolve
from ebm_app.utils.fields import check_argument
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.registry import build

OPTIONS = {field.name for field in fields(RunOptions)} - {"output_dir", "flags"}


def train(
    images: Any,
    output_dir: str | os.PathLike,
    validation: Any = None,
    num_levels: int = 256,
    dataset: str = "images",
    flow: Flow | None = None,
    labels: Tensor | None = None,
    **settings: Any,
) -> EBM:
    """Train an energy-based model of images; return the model with the lowest validation loss.

    Settings, training loop and output files are the same as for ``train/ebm.py``. Use
    ``resume_from_checkpoint="latest"`` to resume an interrupted run. The default objective,
    ``ctsm_m``, is this project's variant of the paper's CTSM-v.

    Args:
        images: (N, C, H, W), uint8 levels 0..num_levels - 1, or floats level / (num_levels - 1)
            in [0, 1]. Also accepts (N, H, W, C) if the layout is unambiguous, a list of Pillow
            images, a ``torch.utils.data.Dataset`` of images or (image, label) pairs, and a
            ``datasets.Dataset``. Large data sets are read from disk at every step.
        output_dir: folder of the run.
        validation: held-out images in the same format. Default: a random tenth of ``images``, at
            least 2.
        num_levels: number L of grey levels.
        dataset: name of the data set in the run record. It also selects the recipe: names other
            than "digits" use the recipe for their image size.
        flow: train in the latent space of this flow. Default: that of the ``init_from`` model, if
            any, otherwise the ambient space.
        labels: class labels (N,), for a class-conditional model. If ``images`` is a data set with
            labels, pass classes="all" instead.
        settings: fields of ``ebm_app.config.Settings`` or ``RunOptions``. They override the
            recipe.

    Raises:
        UserError: for invalid images, an unknown setting, an invalid value, or a folder that
            already holds a run.

    Example:
        >>> import tempfile, torch
        >>> images = torch.randint(17, (20, 1, 8, 8), dtype=torch.uint8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ebm = train(images, folder, num_levels=17, max_train_steps=2, device="cpu",
        ...                 train_batch_size=4, block_out_channels=(8,), num_preview_images=0)
        >>> ebm.config.image_shape
        (1, 8, 8)
    """
    folder = Path(check_argument(str | os.PathLike, "output_dir", output_dir))
    check_argument(str, "dataset", dataset), check_argument(Flow | None, "flow", flow)
    data = ImageData.from_tensors(images, validation, num_levels, dataset, labels)
    settings = {"classes": "none" if labels is None else "all", **settings}
    chosen = {name: settings.pop(name) for name in OPTIONS & set(settings)}
    options = build(RunOptions, "run", {"output_dir": folder, **chosen})
    flow = latent_flow(options.init_from) if flow is None else flow
    resumed = {}
    if options.resume_from_checkpoint:
        resumed = recorded_settings(folder, options.resume_from_checkpoint)
        settings = flags_on_resume(resumed.get("training", {}), settings)
    ebm_config, config = resolve(data, settings, resumed or None, flow)
    generators = torch.random.fork_rng(range(torch.cuda.device_count()))
    task = partial(EBMTask, ebm_config=ebm_config, data=data, flow=flow)
    with generators:
        launch(config, options, task)
    return EBM.from_pretrained(folder, resolve_device(options.device))
