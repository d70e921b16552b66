"""The settings of a run: read back from a PNG or a JSON file of the page, and the last ones of a
visitor, which the visitor's browser keeps."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Le
from PIL import Image
from pydantic import StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from ebm_app.data.folder import UNREADABLE
from ebm_app.io.errors import UserError
from ebm_app.io.registry import choose
from ebm_app.sampling.samplers import SAMPLERS

from ..runs import in_words
from ..shared import Seed

MAX_IMAGES, MAX_STEPS, MAX_RUNS = 64, 200, 10
#: where a PNG keeps them, as JSON
PNG_KEY = "ebm_app"
#: bytes of a JSON file; those of the page have 200
MAX_JSON = 10_000
LABELS = {
    "pf_ode": "Probability-flow ODE (seconds)",
    "annealed_hmc": "Annealed HMC (minutes)",
}
#: what may be told back to a visitor: a name from a file could be long, or markup
Name = Annotated[str, StringConstraints(pattern=r"^[\w./ ()-]{1,100}$")]
NumImages = Annotated[int, Ge(1), Le(MAX_IMAGES)]
NumSteps = Annotated[int, Ge(1), Le(MAX_STEPS)]


@dataclass(frozen=True)
class RunSettings:
    """What fixes the images of a run."""

    model: Name
    sampler: Name
    num_images: NumImages
    num_steps: NumSteps
    seed: Seed

    def describe(self) -> str:
        """A run in a line."""
        sampler = LABELS.get(self.sampler, self.sampler).partition(" (")[0]
        parts = [self.model, sampler, f"{self.num_images} images", f"{self.num_steps} steps"]
        return " · ".join([*parts, f"seed {self.seed}"])


def parse(text: str | bytes) -> RunSettings:
    """Settings from JSON, which anyone may have written.

    Raises:
        UserError: where something is missing, of another type or out of range.
    """
    try:
        return TypeAdapter(RunSettings).validate_json(text)
    except ValidationError as error:
        raise UserError(
            f"these settings are damaged ({in_words(error)}): load the file as it was saved"
        ) from None


def usable(text: str | bytes, models: Iterable[str]) -> RunSettings:
    """``parse``, for one of the models that may be chosen."""
    settings = parse(text)
    choose("model", settings.model, models)
    choose("sampler", settings.sampler, SAMPLERS)
    return settings


def read_settings(path: str | Path, models: Iterable[str]) -> RunSettings:
    """The settings in a PNG or a JSON file, ``usable`` ones.

    Raises:
        UserError: also for a file that is no whole PNG, or has no settings.
    """
    if Path(path).suffix.lower() == ".json":
        with Path(path).open("rb") as file:
            return usable(file.read(MAX_JSON), models)
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            text = picture.info.get(PNG_KEY)
            picture.verify()
    except (*UNREADABLE, Image.DecompressionBombError):
        raise UserError("this file is no PNG or a damaged one: load it as it was saved") from None
    if text is None:
        raise UserError("this PNG holds no settings: load one that was downloaded from this page")
    return usable(text, models)


def remember(runs: Any, settings: RunSettings | None) -> list[str]:
    """The last runs with another one, if there is one, in front, each as JSON; the same settings
    are kept once."""
    old = [run for _, run in known(runs)]
    if settings is None:
        return old
    new = json.dumps(asdict(settings))
    return [new, *(run for run in old if run != new)][:MAX_RUNS]


def known(runs: Any) -> list[tuple[str, str]]:
    """Those of the runs that a browser kept which are settings, in words and as JSON: it may hold
    those of an older page, or anything."""
    found = []
    for run in runs if isinstance(runs, list) else []:
        try:
            found.append((parse(run).describe(), run))
        except (UserError, TypeError):
            continue
    return found
