"""Bits per dim of lossless image formats, for comparison with those of a model."""

import io
import math
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from ebm_app.data.levels import NUM_VALUES
from ebm_app.data.pictures import to_pil
from ebm_app.utils.errors import UserError

#: Formats that Pillow writes, and the options of its strongest lossless compression
PILLOW_OPTIONS = {
    "PNG": {"optimize": True},
    "WebP": {"lossless": True, "quality": 100, "method": 6},
}
#: Program and options of JPEG XL's lossless encoder
CJXL = ("cjxl", "--distance=0", "--effort=9", "--quiet")


def codec_bits(levels: Tensor) -> dict[str, float]:
    """Return the size of images (N, C, H, W) in bits per dim by PNG, WebP and, where the program
    ``cjxl`` is installed, JPEG XL.

    The images are stored as one picture, a near-square sheet, so that headers do not count. A
    format therefore learns from the other images of the sheet, and the bits depend on N.

    >>> import torch
    >>> codec_bits(torch.zeros(16, 1, 8, 8, dtype=torch.uint8))["PNG"] < 2
    True

    Raises:
        UserError: for images without 1 or 3 channels, or levels that are not bytes.
    """
    num, channels, height, width = levels.shape
    if channels not in (1, 3) or int(levels.max()) >= NUM_VALUES:
        raise UserError(
            f"Image formats take 1 or 3 channels of {NUM_VALUES} levels, got images of shape "
            f"{tuple(levels.shape)}."
        )
    columns = math.ceil(math.sqrt(num))
    rows = num // columns  # images of an incomplete row are left out
    sheet = levels[: rows * columns].byte().view(rows, columns, channels, height, width)
    picture = to_pil(sheet.permute(0, 3, 1, 4, 2).reshape(rows * height, -1, channels).numpy())
    sizes = {}
    for name, options in PILLOW_OPTIONS.items():
        picture.save(buffer := io.BytesIO(), name, **options)
        sizes[name] = len(buffer.getvalue())
    if shutil.which(CJXL[0]):
        with TemporaryDirectory() as folder:
            source, target = Path(folder, "sheet.png"), Path(folder, "sheet.jxl")
            picture.save(source)
            subprocess.run([CJXL[0], source, target, *CJXL[1:]], check=True, capture_output=True)
            sizes["JPEG XL"] = target.stat().st_size
    return {name: 8 * size / sheet.numel() for name, size in sizes.items()}
