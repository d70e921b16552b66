"""Flags of commands that evaluate a model on held-out images."""

import sys
from typing import Literal

from accelerate import Accelerator
from torch import Tensor

from ebm_app.command_line import CommonFlags, ImageFileFlags, ModelFlag
from ebm_app.config import Margin
from ebm_app.data.datasets import ImageData
from ebm_app.ebm import EBM
from ebm_app.evaluation.held_out import images_for
from ebm_app.pretrained import find_folder, is_pipeline
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import AtLeastTwo, BatchSize, Draws, NumLevels, configuration, setting
from ebm_app.utils.processes import make_accelerator


@configuration(kw_only=True)
class ImageFlags(CommonFlags, ImageFileFlags, ModelFlag):
    """Flags of a command that reads images for a model."""

    dataset: str | None = setting("data set; if not given, the model's", None)
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    download: bool = setting("download the data set if it is missing", False)
    image_column: str | None = setting("column of images, if a data set has several", None)
    label_column: str | None = setting("column of labels, if a data set has several", None)
    split: Literal["train", "validation", "test"] = setting("split to evaluate", "test")
    limit: AtLeastTwo | None = setting(
        "images to evaluate, from the start of the split; if not given, all", None
    )


@configuration(kw_only=True)
class HeldOutFlags(ImageFlags):
    """Flags of a command that evaluates the density of a model on images."""

    repeats: Draws = setting("dequantisation draws per image", 1)
    batch_size: BatchSize | None = setting(
        "images per network call; if not given, as many as fit in 2^17 elements", None
    )
    t_margin: Margin | None = setting(
        "evaluate log p at t = 1 - t_margin; if not given, the margin of the model", None
    )
    num_levels: NumLevels | None = setting(
        "number of grey levels of a diffusers pipeline; if not given, 256", None
    )


def open_model(args: HeldOutFlags) -> tuple[Accelerator, EBM]:
    """Return the accelerator and the model, with the margin ``--t_margin`` if set."""
    accelerator = make_accelerator(device=args.device)
    if args.num_levels is not None and is_pipeline(find_folder(args.model)):
        ebm = EBM.from_diffusers(args.model, str(accelerator.device), args.num_levels)
    else:
        ebm = EBM.from_pretrained(args.model, str(accelerator.device))
    if args.num_levels not in (None, ebm.config.num_levels):
        raise UserError(
            f"The model {args.model} has {ebm.config.num_levels} levels, got --num_levels "
            f"{args.num_levels}, which is for diffusers pipelines. Leave it out."
        )
    if args.t_margin is not None:
        ebm.model = ebm.model.with_t_margin(args.t_margin)
        if args.t_margin < ebm.model.t_margin:
            print(
                f"warning: The model was trained on times up to 1 - {ebm.model.t_margin}, but "
                f"--t_margin {args.t_margin} evaluates it at later times. The bits per dim may be "
                "too low.",
                file=sys.stderr,
            )
    return accelerator, ebm


def held_out(args: ImageFlags, ebm: EBM) -> tuple[ImageData, Tensor]:
    """Return a data set, and the grey levels (N, C, H, W) of the images to evaluate."""
    data = images_for(
        ebm.config,
        args.dataset or ebm.config.dataset,
        args.data_root,
        args.download,
        args.resize,
        args.image_column,
        args.label_column,
    )
    levels = data.split(args.split)[: args.limit]
    if len(levels) < 2:
        raise UserError(
            f"Expected at least 2 images for a standard error, got {len(levels)}. Use another "
            "--split."
        )
    return data, levels
