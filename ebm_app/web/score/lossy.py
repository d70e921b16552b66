"""Whether an image file keeps its pixels exactly."""

from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from ebm_app.data.folder import FORMATS

#: kinds of a TIFF file's data that Pillow names
LOSSY_TIFF = ("jpeg", "tiff_jpeg", "webp")


def lossy_format(path: Path) -> str | None:
    """The name of a readable file's format if it changes pixels; None if it keeps them. The
    content decides, not the ending."""
    with Image.open(path, formats=FORMATS) as image:
        name, compression = image.format, image.info.get("compression")
    if name in ("JPEG", "MPO"):
        return "JPEG"
    if name == "WEBP" and b"VP8 " in _chunks(path.read_bytes()):
        return "lossy WebP"
    if name == "TIFF" and compression in LOSSY_TIFF:
        return "TIFF with lossy compression"
    return None


def _chunks(content: bytes) -> Iterator[bytes]:
    """The names of the parts of a WebP file: "VP8 " is lossy, "VP8L" is not."""
    place = 12  # after "RIFF", the size, and "WEBP"
    while place + 8 <= len(content):
        yield content[place : place + 4]
        size = int.from_bytes(content[place + 4 : place + 8], "little")
        place += 8 + size + size % 2
