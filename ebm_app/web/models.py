"""Models on the page: listed at startup, loaded when a visitor selects one."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.config import EBMConfig
from ebm_app.data.images import FOLDER
from ebm_app.ebm import EBM
from ebm_app.evaluation.held_out import held_out_images
from ebm_app.folders import BUNDLED, CONFIG_FILE, WEIGHTS_FILE, find_folder, read_config
from ebm_app.nets.parametrisation import ENERGY
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

#: Bundled model that is listed first
FIRST = "mnist"


class Models:
    """Models that a visitor may select. No other folder is ever opened.

    Args:
        folders: model folders by name.
        device: device of the models.
        data_root: folder of the data sets.
    """

    def __init__(
        self, folders: dict[str, Path], device: str = "cpu", data_root: str = "data"
    ) -> None:
        self.folders, self.device, self.data_root = folders, device, data_root
        self._key, self._ebm, self._lock = None, None, Lock()
        self._detector: tuple[EBM | None, AnomalyDetector | None] = None, None

    def folder(self, name: str) -> Path:
        """Return the folder of a listed model."""
        return self.folders[choose("model", name, self.folders)]

    def load(self, name: str) -> EBM:
        """Return a model. The last one stays in memory until its weights file changes."""
        folder = self.folder(name)
        weights = folder / WEIGHTS_FILE
        key = (name, weights.exists() and weights.stat().st_mtime_ns)
        with self._lock:
            if key != self._key:
                with hide_path(folder, name):
                    self._ebm = EBM.from_pretrained(folder, self.device)
                self._key = key
            return self._ebm

    def detector(self, name: str) -> AnomalyDetector | None:
        """Return the anomaly detector of a model, read from its folder or fitted to held-out
        images; None if neither is possible."""
        ebm, folder = self.load(name), self.folder(name)
        if self._detector[0] is not ebm:
            self._detector = ebm, None
            with suppress(UserError):
                detector = AnomalyDetector(ebm)
                detector.read(folder)
                if not detector.is_fitted:
                    detector.fit(held_out_images(ebm.config, self.data_root))
                self._detector = ebm, detector
        return self._detector[1]


def dataset_name(config: EBMConfig) -> str:
    """Return the data set of a model; for an image folder, without the path on the server."""
    is_folder = config.dataset.startswith(FOLDER)
    return FOLDER + Path(config.dataset).name if is_folder else config.dataset


def title_of(name: str, folder: Path) -> str:
    """Return the title of a model in the selector: its name, data set, image size and kind. Only
    the name if the config is invalid, which is reported when the model is selected."""
    try:
        config = read_config(EBMConfig, folder)
    except UserError:
        return name
    latent = "" if config.space == EBMConfig.space else ", latent"
    energy = ", energy network" if config.prediction == ENERGY else ""
    _, height, width = config.image_shape
    return f"{name}: {dataset_name(config)}, {height} × {width} pixels{latent}{energy}"


@contextmanager
def hide_path(folder: Path, name: str) -> Iterator[None]:
    """Replace a path on the server by a name in the messages of UserErrors."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace(str(folder), name)) from None


def find_models(model: str | None, models_dir: str | None) -> dict[str, Path]:
    """Return model folders by name: ``model`` first, then the bundled models, then the runs in
    ``models_dir`` and their checkpoints.

    Raises:
        UserError: if ``model`` or ``models_dir`` does not exist.
    """
    found: dict[str, Path] = {}
    for name, folder in _candidates(model, models_dir):
        if not any(folder.samefile(other) for other in found.values()):
            found[f"{name} ({len(found) + 1})" if name in found else name] = folder
    return found


def _candidates(model: str | None, models_dir: str | None) -> Iterator[tuple[str, Path]]:
    if model is not None:
        folder = find_folder(model)
        yield (model if folder.parent == BUNDLED else folder.resolve().name), folder
    yield from sorted(_below(BUNDLED, "*"), key=lambda candidate: candidate[0] != FIRST)
    if models_dir is not None:
        if not Path(models_dir).is_dir():
            raise UserError(f"--models_dir '{models_dir}' is not a folder. Give another folder.")
        yield from [*_below(Path(models_dir), "*"), *_below(Path(models_dir), "*/*")]


def _below(root: Path, pattern: str) -> list[tuple[str, Path]]:
    files = sorted(root.glob(f"{pattern}/{CONFIG_FILE}"))
    return [(file.parent.relative_to(root).as_posix(), file.parent) for file in files]
