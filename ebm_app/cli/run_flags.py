"""Flags of the training commands, and those that a resumed or repeated run takes from a record."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ebm_app.cli.command_line import explicit
from ebm_app.config import Side
from ebm_app.training.checkpoint import recorded_settings, refuse_to_overwrite
from ebm_app.training.plan import RunOptions
from ebm_app.utils.fields import (
    advanced,
    configuration,
    from_attributes,
    setting,
    user_errors,
)

T = TypeVar("T", bound=RunOptions)
#: Flags that the record of a run holds beside its settings: those that choose data and weights
RECORDED = "dataset data_root resolution skip_bad flow init_from model target".split()


@configuration(kw_only=True)
class DataFlags:
    """Flags that choose a data set."""

    dataset: str = setting(
        "digits, mnist, fashion_mnist, cifar10, folder:PATH for image files, or hf:NAME for a "
        "Hugging Face data set, by its folder or its name on the hub",
        "digits",
    )
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("download a missing data set", False)
    skip_bad: bool = setting("leave out files of a folder that are not readable images", False)
    resolution: Side | None = advanced("side to which the images of a folder are resized", None)


def run_options(args: RunOptions) -> RunOptions:
    """Return the run options among the flags, with the flags that the record holds."""
    names = {item.name for item in dataclasses.fields(args)}
    flags = {name: getattr(args, name) for name in RECORDED if name in names}
    return from_attributes(RunOptions, args, flags=flags)


def settings_to_resume(args: RunOptions) -> dict[str, Any]:
    """Return the recorded settings of the run to resume, or {} for a new run.

    Raises:
        UserError: if a new run would start in a folder that already holds one.
    """
    if args.resume_from_checkpoint:
        return recorded_settings(args.output_dir, args.resume_from_checkpoint)
    if not args.overwrite_output_dir:
        refuse_to_overwrite(args.output_dir)
    return {}


def restore(args: T, argv: Sequence[str] | None, settings: Mapping[str, Any]) -> T:
    """Return the arguments, where flags that are not passed have the values in the recorded
    ``settings`` of a run. A record without flags has its data set in the model's configuration."""
    flags = dict(settings.get("flags", {}))
    for part in settings.values():
        if isinstance(part, Mapping) and "dataset" in part:
            flags.setdefault("dataset", part["dataset"])
    passed = explicit(args, argv, type(args))
    restored = {
        item.name: flags[item.name]
        for item in dataclasses.fields(args)
        if item.name in flags.keys() - passed.keys() and getattr(args, item.name) == item.default
    }
    with user_errors("The record of the run"):
        return dataclasses.replace(args, **restored)
