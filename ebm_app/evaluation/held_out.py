"""A model and the held-out images that it is evaluated on, as the flags of a script name them."""

import sys
from typing import Annotated, Literal

import torch
from accelerate import Accelerator
from pydantic import AfterValidator
from torch import Tensor

from ebm_app.config import Margin, NumLevels
from ebm_app.data.folder import SPLITS
from ebm_app.data.images import FOLDER, ImageData, load_images
from ebm_app.data.levels import image_format
from ebm_app.ebm import EBM
from ebm_app.utils.command_line import CommonFlags, ModelFlag
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import BatchSize, Draws, Several, advanced, configuration, setting
from ebm_app.utils.processes import make_accelerator
from ebm_app.utils.registry import choose

Split = Annotated[str, AfterValidator(lambda name: choose("split", name, SPLITS))]


@configuration(kw_only=True)
class ImageFlags(CommonFlags, ModelFlag):
    """The flags of a script that reads images for a model."""

    dataset: str | None = setting("the model's own if not given", None)
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    split: Split = setting("train, validation or test", "test")
    limit: Several | None = setting("take the first images only", None)


@configuration(kw_only=True)
class HeldOutFlags(ImageFlags):
    """The flags of a script that evaluates a model's density on held-out images."""

    repeats: Draws = setting("dequantisation draws of each image", 4)
    batch_size: BatchSize = setting("images taken together", 128)
    mixed_precision: Literal["no", "bf16"] = advanced(
        "of the network's passes; bf16 adds 0.003 to 0.004 bits per dim on digits by noised and "
        "ratio, and nothing by elbo",
        "no",
    )
    eps: Margin | None = setting("margin left at t = 1; the model's own if not given", None)
    num_levels: NumLevels | None = setting(
        "of the images of a diffusers pipeline; 256 if not given", None
    )


def open_model(args: HeldOutFlags) -> tuple[Accelerator, EBM]:
    """The processes and the model of a script, with the margin asked for."""
    accelerator = make_accelerator(device=args.device)
    if args.num_levels is None:
        ebm = EBM.from_pretrained(args.model, str(accelerator.device))
    else:
        ebm = EBM.from_diffusers(args.model, str(accelerator.device), args.num_levels)
    if args.mixed_precision == "bf16":
        use_bf16(ebm)
    if args.eps is not None:
        ebm.energy = ebm.energy.with_eps(args.eps)
        if args.eps < ebm.model.eps:
            print(
                f"note: the model was trained to eps {ebm.model.eps} only: beyond it the network "
                "is evaluated at times it was not trained on, and the bits may be too few",
                file=sys.stderr,
            )
    return accelerator, ebm


def use_bf16(ebm: EBM) -> None:
    """Let a model's network compute in bfloat16; weights, scores and sums stay as they are."""
    net = ebm.model.net
    net.forward = torch.autocast(ebm.device.type, torch.bfloat16)(net.forward)


def held_out(args: ImageFlags, ebm: EBM) -> tuple[Tensor, ImageData]:
    """The images to evaluate by a script's flags, levels (N, C, H, W), and the data set that they
    are from; see ``images_for``.

    Raises:
        UserError: for fewer than two, which have no standard error.
    """
    data = images_for(ebm, args.dataset or ebm.config.dataset, args.data_root, args.download)
    levels = data.split(args.split)[: args.limit]
    if len(levels) < 2:
        raise UserError("at least 2 images are needed for a standard error: give another --split")
    return levels, data


def images_for(
    ebm: EBM, dataset: str, data_root: str = "data", download: bool = False
) -> ImageData:
    """A data set in the form that a model takes.

    Raises:
        UserError: where it cannot be read, or does not fit the model.
    """
    _, height, width = ebm.config.image_shape
    # a folder's images are brought to the model's size
    is_square_folder = dataset.startswith(FOLDER) and height == width
    data = load_images(dataset, data_root, download, height if is_square_folder else None)
    expected, found = image_format(ebm.config), image_format(data)
    if expected != found:
        raise UserError(
            f"the model takes images of {expected}, but {data.name} has {found}: give images of "
            "that form"
        )
    return data
