"""``train``: an energy-based model from a tensor of images."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ebm_app.data.images import ImageData
from ebm_app.ebm import EBM
from ebm_app.flow import Flow
from ebm_app.training.launch import flow_of, train_ebm
from ebm_app.training.options import RunOptions
from ebm_app.training.settings import resolve
from ebm_app.utils.fields import check_argument
from ebm_app.utils.output import lasting_terminal
from ebm_app.utils.processes import resolve_device
from ebm_app.utils.registry import build

OPTIONS = {field.name for field in fields(RunOptions)} - {"output_dir"}


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
    """Train an energy-based model of images, and return the one of least validation loss.

    The run is that of ``train/ebm.py``: the same settings, the same loop and the same files in
    ``output_dir``, where an interrupted run is resumed by ``resume_from_checkpoint="latest"``.

    Args:
        images: (N, C, H, W), levels 0..num_levels - 1 as uint8, or levels / (num_levels - 1) as
            floats in [0, 1]. Also (N, H, W, C) where that is plain, a list of Pillow's images, a
            ``torch.utils.data.Dataset`` of images or of (image, label), and a
            ``datasets.Dataset``, which are read from the disk at every step where they are large.
        output_dir: folder of everything that the run writes.
        validation: held-out images of the same form; None holds out a tenth of ``images``, drawn
            at random, and at least 2.
        num_levels: L, the number of grey levels.
        dataset: name of the images in the records; one that has a preset, such as "digits",
            takes it. Other names take the preset of the image size.
        flow: in whose latent space the path lives; None for that of the model of ``init_from``,
            or for pixels.
        labels: class labels (N,), which the model is told; a data set's own by classes="all".
        settings: any field of ``ebm_app.config.Settings`` or ``RunOptions`` by its name,
            in place of the preset's.

    Raises:
        UserError: for images that are not of this form, unknown settings, invalid values, or a
            folder that already holds a run.

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
    dataset, flow = (
        check_argument(str, "dataset", dataset),
        check_argument(Flow | None, "flow", flow),
    )
    data = ImageData.from_tensors(images, validation, num_levels, dataset, labels)
    settings = {"classes": "none" if labels is None else "all", **settings}
    chosen = {name: settings.pop(name) for name in OPTIONS & set(settings)}
    options = build(RunOptions, "run", {"output_dir": folder, **chosen})
    flow = flow_of(options.init_from) if flow is None else flow
    ebm_config, config = resolve(data, settings, flow=flow)
    generators = torch.random.fork_rng(range(torch.cuda.device_count()))
    with lasting_terminal(), generators:
        train_ebm(data, ebm_config, config, options, flow)
    return EBM.from_pretrained(folder, resolve_device(options.device))
