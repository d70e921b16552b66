"""The models that the page offers: found once at the start, opened when a visitor chooses one."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from ebm_app.anomaly.detector import AnomalyDetector
from ebm_app.config import EBMConfig
from ebm_app.data.images import FOLDER
from ebm_app.ebm import EBM
from ebm_app.evaluation.examples import held_out_images
from ebm_app.folders import BUNDLED, CONFIG_FILE, WEIGHTS_FILE, find_folder, read_config
from ebm_app.nets.parametrisation import ENERGY
from ebm_app.utils.errors import UserError
from ebm_app.utils.registry import choose

#: the bundled model that a visitor sees first
FIRST = "mnist"


class Models:
    """The models a visitor may choose, folders by name; no other folder is ever opened."""

    def __init__(
        self, folders: dict[str, Path], device: str = "cpu", data_root: str = "data"
    ) -> None:
        self.folders, self.device, self.data_root = folders, device, data_root
        self._key, self._ebm, self._lock = None, None, Lock()
        self._detector: tuple[EBM | None, AnomalyDetector | None] = None, None

    def folder(self, name: str) -> Path:
        """The folder of a name that is offered."""
        return self.folders[choose("model", name, self.folders)]

    def load(self, name: str) -> EBM:
        """The model of a name. The last one is kept until its files change."""
        folder = self.folder(name)
        weights = folder / WEIGHTS_FILE
        key = (name, weights.exists() and weights.stat().st_mtime_ns)
        with self._lock:  # two visitors may choose two models at once
            if key != self._key:
                with without_path(folder, name):
                    self._ebm = EBM.from_pretrained(folder, self.device)
                self._key = key
            return self._ebm

    def detector(self, name: str) -> AnomalyDetector | None:
        """What tells odd images from ordinary ones by the model of a name: it is read from its
        folder, or fitted to held-out images; None where there are neither, or too few."""
        ebm, folder = self.load(name), self.folder(name)
        if self._detector[0] is not ebm:
            self._detector = ebm, None
            with suppress(UserError):
                found = AnomalyDetector(ebm)
                found.read(folder)
                if not found.is_fitted:
                    found.fit(held_out_images(ebm.config, self.data_root))
                self._detector = ebm, found
        return self._detector[1]


def data_of(config: EBMConfig) -> str:
    """The data set of a model; of a folder of images its last part: folders are the server's."""
    is_folder = config.dataset.startswith(FOLDER)
    return FOLDER + Path(config.dataset).name if is_folder else config.dataset


def in_a_line(name: str, folder: Path) -> str:
    """A model's name and what its images are; the name alone where its configuration cannot be
    read, which is explained when it is chosen."""
    try:
        config = read_config(EBMConfig, folder)
    except UserError:
        return name
    latent = "" if config.space == EBMConfig.space else ", latent"
    energy = ", an energy in one pass" if config.prediction == ENERGY else ""
    _, height, width = config.image_shape
    return f"{name}: {data_of(config)}, {height} × {width} pixels{latent}{energy}"


@contextmanager
def without_path(folder: Path, name: str) -> Iterator[None]:
    """Let UserErrors name a model or a file, not its folder: that is the server's own."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace(str(folder), name)) from None


def find_models(model: str | None, models_dir: str | None) -> dict[str, Path]:
    """The models to offer: ``model`` first, then the bundled ones, then those in ``models_dir``, a
    folder of runs; their checkpoints are models too."""
    found: dict[str, Path] = {}
    for name, folder in _candidates(model, models_dir):
        if not any(folder.samefile(other) for other in found.values()):
            found[f"{name} ({len(found) + 1})" if name in found else name] = folder
    return found


def _candidates(model: str | None, models_dir: str | None) -> Iterator[tuple[str, Path]]:
    if model is not None:
        folder = find_folder(model)
        yield (model if folder.parent == BUNDLED else folder.resolve().name), folder
    yield from sorted(_below(BUNDLED, "*"), key=lambda found: found[0] != FIRST)
    if models_dir is not None:
        if not Path(models_dir).is_dir():
            raise UserError(f"there is no folder '{models_dir}': give another --models_dir")
        yield from [*_below(Path(models_dir), "*"), *_below(Path(models_dir), "*/*")]


def _below(root: Path, pattern: str) -> list[tuple[str, Path]]:
    files = sorted(root.glob(f"{pattern}/{CONFIG_FILE}"))
    return [(file.parent.relative_to(root).as_posix(), file.parent) for file in files]
