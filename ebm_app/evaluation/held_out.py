"""Data sets in the form that a model takes."""

from ebm_app.data.images import FOLDER, ImageData, load_images
from ebm_app.data.levels import image_format
from ebm_app.ebm import EBM
from ebm_app.utils.errors import UserError


def images_for(
    ebm: EBM, dataset: str, data_root: str = "data", download: bool = False
) -> ImageData:
    """Load a data set for a model; the images of a folder are resized to the model's size.

    Raises:
        UserError: if the data set cannot be read, or its images do not fit the model.
    """
    _, height, width = ebm.config.image_shape
    is_square_folder = dataset.startswith(FOLDER) and height == width
    data = load_images(dataset, data_root, download, height if is_square_folder else None)
    expected, actual = image_format(ebm.config), image_format(data)
    if expected != actual:
        raise UserError(f"This model takes images of {expected}, got {actual} from {data.name}.")
    return data
