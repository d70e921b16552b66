"""Bits per dim of held-out images, stored in a model's folder, to compare other images with."""

from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from ebm_app.ebm import EBM
from ebm_app.pretrained import fingerprint
from ebm_app.utils.files import read_json, report_damage, write_json

BITS_FILE = "held_out_bits.json"
#: Quantiles of the range that is quoted
RANGE = (0.025, 0.975)


class HeldOutBits(NamedTuple):
    """Bits per dim (N,) of held-out images of a model's data set, in ascending order."""

    bits: np.ndarray

    @classmethod
    def load(cls, folder: Path, ebm: EBM) -> Self | None:
        """Return the bits in a model's folder, or None if there are none by the model's default
        estimator and current weights."""
        path = folder / BITS_FILE
        if not path.is_file():
            return None
        record = read_json(path)
        with report_damage(path):
            if not provenance(ebm).items() <= record.items():
                return None
            bits = np.sort(np.asarray(record["bits_per_dim"], dtype=float))
            if bits.ndim != 1 or not bits.size or not np.isfinite(bits).all() or bits[0] < 0:
                raise ValueError("bits_per_dim must be a list of numbers of at least 0")
            return cls(bits)

    def range(self) -> tuple[float, float]:
        """Return the bits between which 95 percent of the images lie."""
        low, high = np.quantile(self.bits, RANGE)
        return float(low), float(high)

    def fraction_above(self, bits: float) -> float:
        """Return the fraction of the images that take more than a number of bits, which are less
        likely.

        >>> HeldOutBits(np.array([1.0, 2.0, 3.0, 4.0])).fraction_above(2.5)
        0.5
        """
        return float(np.mean(self.bits > bits))


def save_bits(folder: Path, ebm: EBM, bits: Tensor, split: str) -> None:
    """Write the bits per dim (N,) of held-out images by the default estimator."""
    values = [round(value, 4) for value in bits.tolist()]
    write_json(folder / BITS_FILE, {**provenance(ebm), "split": split, "bits_per_dim": values})


def provenance(ebm: EBM) -> dict[str, str]:
    """Return what the bits depend on, besides the images."""
    return {
        "dataset": ebm.config.dataset,
        "estimator": ebm.default_estimator,
        "weights": fingerprint(ebm),
    }
