"""Held-out images of a model's own data set, and other data sets for a model."""

from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.datasets import DATASETS, FOLDER, HUB, ImageData, load_files, load_images
from ebm_app.data.levels import image_format, to_display
from ebm_app.data.pictures import (
    exact_levels,
    fitted_levels,
    image_grid,
    read_picture,
    to_pil,
)
from ebm_app.evaluation.drawings import to_input
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

#: File name and number of the example images in a model's folder
EXAMPLE_FILE, NUM_EXAMPLES = "example_{}.png", 10
#: Grid of samples in a model's folder
SAMPLES_FILE = "samples_grid.png"
#: Min width of an example in the web app, in pixels
EXAMPLE_PIXELS = 224


def images_for(
    config: EBMConfig,
    dataset: str,
    data_root: str = "data",
    download: bool = False,
    resize: bool = False,
    image_column: str | None = None,
    label_column: str | None = None,
) -> ImageData:
    """Load a data set for a model.

    Args:
        resize: convert the images of a folder or a Hugging Face data set to the format of the
            model, as is the model's own data set. Other images must match.
        image_column, label_column: as for ``load_images``.

    Raises:
        UserError: if the data set cannot be read, or its images do not match the model.
    """
    if dataset == config.dataset and ":" not in dataset and dataset not in DATASETS:
        raise UserError(
            f"The data set '{dataset}' of this model cannot be loaded by name. Choose a data set, "
            "for example --dataset folder:PATH."
        )
    columns = {"image_column": image_column, "label_column": label_column}
    if dataset.startswith((FOLDER, HUB)):
        convert = fitted_levels if resize or dataset == config.dataset else exact_levels
        form = {"image_shape": config.image_shape, "num_levels": config.num_levels}
        data = load_files(dataset, partial(convert, **form), config.num_levels, **columns)
    else:
        data = load_images(dataset, data_root, download, **columns)
    expected, actual = image_format(config), image_format(data)
    if expected != actual:
        raise UserError(
            f"This model takes images of {expected}, got {actual} from {data.name}. Choose "
            "another data set."
        )
    return data


def labels_for(config: EBMConfig, data: ImageData, split: str) -> Tensor:
    """Return the class labels (N,) of a split, numbered as in the model. Classes are matched by
    name; a class without a name has its number as name. Unknown labels stay -1.

    Raises:
        UserError: for images without labels, or of a class that the model does not have.
    """
    labels, names = data.split_labels(split), config.classes()
    if not names:  # the likelihood refuses labels for this model
        return labels
    own = data.class_names or tuple(map(str, range(data.num_classes)))
    number = {name: label for label, name in enumerate(names)}
    for label in labels[labels >= 0].unique().tolist():
        if (name := own[label]) not in number:
            raise UserError(
                f"This model has no class '{name}', only {', '.join(names)}. Rename the class, or "
                "leave out its images."
            )
    # the last entry is that of the label -1
    return torch.tensor([*(number.get(name, -1) for name in own), -1])[labels]


def examples(folder: Path, config: EBMConfig, data_root: str) -> list[Image.Image]:
    """Return example images for the model in a folder: files in the folder, test images of its
    data set if that is on this machine, or an empty list."""
    files = [folder / EXAMPLE_FILE.format(index) for index in range(NUM_EXAMPLES)]
    if files[0].is_file():
        return [read_picture(file, str(file)) for file in files]
    try:  # only named data sets are read, not folders
        data = images_for(config, choose("data set", config.dataset, DATASETS), data_root)
    except (UserError, ModuleNotFoundError):  # of an extra
        return []
    images = to_display(data.test[:NUM_EXAMPLES], config.num_levels)
    return [to_pil(image_grid(image, EXAMPLE_PIXELS)) for image in images.split(1)]


def stored_samples(folder: Path, config: EBMConfig, num: int = 10) -> Tensor | None:
    """Return the first samples of ``image_grid`` in a model's folder, images (B, C, H, W) in
    [0, 1], or None without a grid."""
    path = folder / SAMPLES_FILE
    if not path.is_file():
        return None
    grid, (_, height, width) = read_picture(path, str(path)), config.image_shape
    # pixels are repeated, and there is a border of one pixel between images
    for factor in range(grid.width // width, 0, -1):
        if not grid.width % factor and not (grid.width // factor + 1) % (width + 1):
            break
    else:
        return None
    across, down = factor * (width + 1), factor * (height + 1)
    corners = [
        (left, top) for top in range(0, grid.height, down) for left in range(0, grid.width, across)
    ]
    tiles = (
        grid.crop((left, top, left + factor * width, top + factor * height))
        for left, top in corners[:num]
    )
    return torch.cat([to_input(tile, config) for tile in tiles])
