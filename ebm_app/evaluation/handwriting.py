"""Ink in photographs and scans of handwriting, without the paper."""

import numpy as np
from PIL import Image
from scipy import ndimage

#: Longer side in pixels at which the ink is searched
SIDE = 420
#: Side of the window of the background, as a share of the image. It is wider than a stroke.
WINDOW = 0.2
#: Min difference of the mean ink of strokes and of paper, as a share of the paper's brightness
MIN_CONTRAST = 0.18
#: Min and max share of the image that ink covers
COVER = (0.003, 0.35)
#: Min size of a part of the ink, as a share of the largest one
MIN_PART = 0.04
#: Min length of a ruled line, as a share of the image
LINE = 0.45
#: Width of a stroke that thinner strokes are widened to, as a share of the longer side of the ink
STROKE = 0.09


def find_ink(picture: Image.Image) -> Image.Image | None:
    """Return the ink of a photograph or scan as light strokes on black, or None for a picture that
    does not show ink on paper.

    Paper is light or dark, uneven or ruled. Its brightness is the closing of the picture by a
    window wider than a stroke, so that shadows are removed with it. Otsu's threshold then
    separates ink from paper. Ruled lines, specks and what touches the border are left out, and
    thin strokes are widened to about those of MNIST.
    """
    grey = picture.convert("L")
    grey.thumbnail((SIDE, SIDE), Image.Resampling.BOX)
    pixels = ndimage.gaussian_filter(np.asarray(grey, dtype=float), 0.7)
    if np.median(border_of(pixels)) < np.median([pixels.min(), pixels.max()]):
        pixels = 255 - pixels
    window = int(WINDOW * max(pixels.shape)) | 1
    paper = ndimage.gaussian_filter(ndimage.grey_closing(pixels, window), window / 4)
    ink = np.clip(1 - pixels / np.maximum(paper, 1), 0, 1)
    threshold = otsu(ink)
    mask = ink > threshold
    if not COVER[0] <= mask.mean() <= COVER[1]:
        return None
    if ink[mask].mean() - ink[~mask].mean() < MIN_CONTRAST:
        return None
    kept = largest_parts(without_lines(mask))
    if not kept.any():
        return None
    kept = widen(kept)
    soft = ndimage.gaussian_filter(kept.astype(float), 0.8)
    return Image.fromarray((255 * soft).round().astype(np.uint8))


def border_of(pixels: np.ndarray) -> np.ndarray:
    """Return the pixels on the border of an image (H, W)."""
    return np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])


def otsu(values: np.ndarray) -> float:
    """Return the threshold of values in [0, 1] with the largest variance between both classes
    (Otsu 1979)."""
    counts, edges = np.histogram(values, 128, (0, 1))
    middles = (edges[:-1] + edges[1:]) / 2
    below = counts.cumsum()
    above = below[-1] - below
    sums = (counts * middles).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = sums / below - (sums[-1] - sums) / above
        between = np.nan_to_num(below * above * gap**2)
    return float(edges[1 + between.argmax()])


def without_lines(mask: np.ndarray) -> np.ndarray:
    """Remove long straight lines along both axes from a mask (H, W), and close the gaps that they
    leave in strokes."""
    for axis in (0, 1):
        shape = [1, 1]
        shape[axis] = max(3, int(LINE * mask.shape[axis]))
        lines = ndimage.binary_opening(mask, np.ones(shape))
        if lines.any():
            across = np.ones((9, 1) if axis else (1, 9))
            mask = mask & ~ndimage.binary_dilation(lines, across[3:6] if axis else across[:, 3:6])
            mask = mask | ndimage.binary_closing(mask, across)
    return mask


def largest_parts(mask: np.ndarray) -> np.ndarray:
    """Keep the connected parts of a mask (H, W) that are not specks and do not touch the border,
    unless all large ones touch it."""
    parts, num = ndimage.label(mask, np.ones((3, 3)))
    if not num:
        return mask
    sizes = np.bincount(parts.ravel(), minlength=num + 1)
    sizes[0] = 0
    inner = sizes.copy()
    inner[np.unique(border_of(parts))] = 0
    sizes = inner if inner.max() >= 0.1 * sizes.max() else sizes
    return (sizes >= MIN_PART * sizes.max())[parts]


def widen(mask: np.ndarray) -> np.ndarray:
    """Widen the strokes of a mask (H, W) that are thinner than ``STROKE``."""
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    longer = max(np.ptp(rows), np.ptp(columns)) + 1
    # in a stroke of width w the mean distance to the background is about w / 4
    width = 4 * ndimage.distance_transform_edt(mask)[mask].mean()
    missing = round((STROKE * longer - width) / 2)
    if missing <= 0:
        return mask
    padded = np.pad(mask, missing)
    return ndimage.distance_transform_edt(~padded) <= missing
