"""Models of the web app: listed at startup, loaded when a visitor selects one."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ebm_app.anomaly import FITTED_FILE, AnomalyDetector, UnfittedError
from ebm_app.config import EBMConfig
from ebm_app.ebm import EBM
from ebm_app.evaluation.reference import BITS_FILE, HeldOutBits
from ebm_app.pretrained import WEIGHTS_FILE, read_config
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

#: Names of bundled models in the selector
NAMES = {
    "mnist": "Handwritten digits",
    "fashion": "Clothing",
    "cifar10": "Colour photographs",
    "digits": "Tiny digits",
}
#: Max models in memory, of about 20 MB each
MAX_LOADED = 16


class Models:
    """Models that a visitor may select. No other folder is ever opened.

    Args:
        folders: model folders by name.
        device: device of the models.
        data_root: folder of the data sets, for example images.
    """

    def __init__(
        self, folders: dict[str, Path], device: str = "cpu", data_root: str = "data"
    ) -> None:
        self.folders, self.device, self.data_root = folders, device, data_root

    def folder(self, name: str) -> Path:
        """Return the folder of a listed model."""
        return self.folders[choose("model", name, self.folders)]

    def config(self, name: str) -> EBMConfig:
        """Return the configuration of a listed model without loading it."""
        return read_config(EBMConfig, self.folder(name))

    def choices(self) -> list[tuple[str, str]]:
        """Return the labels and names in the selector: the first model, then the bundled ones of
        ``NAMES``, then others."""
        first, *names = self.folders
        names = [first, *sorted(names, key=lambda name: name not in NAMES)]
        return [(NAMES.get(name, f"Other models: {name}"), name) for name in names]

    def classes(self) -> list[str]:
        """Return the names of the classes of all listed models."""
        names: dict[str, None] = {}
        for name in self.folders:
            with suppress(UserError):  # reported when the model is selected
                names |= dict.fromkeys(self.config(name).classes())
        return list(names)

    def open(self, name: str) -> "LoadedModel":
        """Return a model with its detector. The last ``MAX_LOADED`` ones stay in memory until
        their files change."""
        folder = self.folder(name)
        files = (folder / name for name in (WEIGHTS_FILE, FITTED_FILE, BITS_FILE))
        changed = tuple(file.exists() and file.stat().st_mtime_ns for file in files)
        return load_model(folder, self.device, changed)


class LoadedModel:
    """A model in memory, and in its folder the anomaly detector and the bits of held-out images,
    or None."""

    def __init__(self, folder: Path, device: str) -> None:
        self.ebm = EBM.from_pretrained(folder, device)
        self.detector: AnomalyDetector | None = None
        if self.ebm.config.stein_head:
            with suppress(UnfittedError):
                self.detector = AnomalyDetector(self.ebm).load(folder)
        self.held_out = HeldOutBits.load(folder, self.ebm)


@lru_cache(MAX_LOADED)
def load_model(folder: Path, device: str, changed: tuple[int | bool, ...]) -> LoadedModel:
    """Load a model. ``changed`` has the modification times of its files, so that changed files
    are loaded again."""
    return LoadedModel(folder, device)
