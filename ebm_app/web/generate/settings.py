"""The settings of a run, and how they are read back from a PNG or a JSON file of the page."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from PIL import Image

from ebm_app.data.folder import UNREADABLE
from ebm_app.io.errors import UserError
from ebm_app.io.records import parse_json
from ebm_app.io.registry import choose
from ebm_app.sampling.samplers import SAMPLERS

from ..ranges import whole
from ..shared import MAX_SEED

MAX_IMAGES, MAX_STEPS = 64, 200
LIMITS = {"num_images": (1, MAX_IMAGES), "num_steps": (1, MAX_STEPS), "seed": (0, MAX_SEED)}
#: where a PNG keeps them, as JSON
PNG_KEY = "ebm_app"
#: bytes of a JSON file; those of the page have 200
MAX_JSON = 10_000
#: what may be told back to a visitor: a name from a file could be long, or markup
PLAIN_NAME = re.compile(r"[\w./ ()-]{1,100}")


@dataclass(frozen=True)
class RunSettings:
    """What fixes the images of a run.

    Raises:
        UserError: for an unknown sampler, or a number out of its limits.
    """

    model: str
    sampler: str
    num_images: int
    num_steps: int
    seed: int

    def __post_init__(self) -> None:
        choose("sampler", self.sampler, SAMPLERS)
        for name, (low, high) in LIMITS.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), low, high))


def read_settings(path: str | Path, models: Iterable[str]) -> RunSettings:
    """The settings in a PNG or a JSON file.

    Args:
        models: the names that may be chosen.

    Raises:
        UserError: for a file that is no whole PNG, or has no settings or unusable ones.
    """
    is_json = Path(path).suffix.lower() == ".json"
    return usable(_json_of(Path(path)) if is_json else _text_of_png(path), models)


def usable(text: str, models: Iterable[str]) -> RunSettings:
    """Settings from JSON, of one of the models that may be chosen.

    Raises:
        UserError: for unusable settings, or another model.
    """
    settings = parse_settings(text)
    choose("model", settings.model, models)
    return settings


def _json_of(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MAX_JSON).decode(errors="replace")


def _text_of_png(path: str | Path) -> str:
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            text = picture.info.get(PNG_KEY)
            picture.verify()
    except (*UNREADABLE, Image.DecompressionBombError):
        raise UserError("this file is no PNG or a damaged one: load it as it was saved") from None
    if text is None:
        raise UserError("this PNG holds no settings: load one that was downloaded from this page")
    return text


def parse_settings(text: str) -> RunSettings:
    """Settings from JSON, which anyone may have written.

    Raises:
        UserError: where something is missing, of another type or out of range.
    """
    try:
        found = parse_json(text.encode(), "the settings")
        values = {field.name: found[field.name] for field in fields(RunSettings)}
        is_plain = all(PLAIN_NAME.fullmatch(values[name]) for name in ("model", "sampler"))
    except (UserError, LookupError, TypeError):
        is_plain = False
    if not is_plain:
        raise UserError("these settings are damaged: load the file as it was saved")
    return RunSettings(**values)
