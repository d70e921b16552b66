"""Flags of the training commands, and those that a resumed or repeated run takes from a record."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ebm_app.cli.command_line import explicit
from ebm_app.config import Side
from ebm_app.training.checkpoint import recorded_settings, refuse_to_overwrite
from ebm_app.training.plan import RunOptions
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import (
    advanced,
    configuration,
    from_attributes,
    setting,
    user_errors,
)

T = TypeVar("T", bound=RunOptions)
#: Flags that a resumed run must not change
FIXED = ("dataset", "resolution", "size", "model", "target", "others")
#: Flags that it may change: the images and the weights are compared with those of the checkpoint
MOVABLE = ("data_root", "skip_bad", "flow", "init_from")


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
    flags = {name: getattr(args, name) for name in (*FIXED, *MOVABLE) if name in names}
    return from_attributes(RunOptions, args, flags=flags)


def resume(args: T, argv: Sequence[str] | None) -> tuple[T, dict[str, Any]]:
    """Return the arguments with the recorded flags of the run to resume, and its settings; for a
    new run, whose folder must not hold a run, the same arguments and {}.

    Raises:
        UserError: naming a flag that contradicts the run.
    """
    if not args.resume_from_checkpoint:
        if not args.overwrite_output_dir:
            refuse_to_overwrite(args.output_dir)
        return args, {}
    settings = recorded_settings(args.output_dir, args.resume_from_checkpoint)
    flags, passed = recorded_flags(settings), passed_flags(args, argv)
    for name in set(FIXED) & flags.keys() & passed.keys():
        if passed[name] != flags[name]:
            raise UserError(
                f"--{name} is {passed[name]}, but the run to resume has {flags[name]}. Leave out "
                f"--{name}, or start a new run in another --output_dir."
            )
    return restore(args, argv, settings), settings


def restore(args: T, argv: Sequence[str] | None, settings: Mapping[str, Any]) -> T:
    """Return the arguments, where flags that are not passed have the values in the recorded
    ``settings`` of a run."""
    flags, passed = recorded_flags(settings), passed_flags(args, argv)
    if "init_from" in passed:
        flags.pop("flow", None)  # that model has its own
    names = {item.name for item in dataclasses.fields(args)} - passed.keys()
    with user_errors("The record of the run"):
        return dataclasses.replace(args, **{name: flags[name] for name in names & flags.keys()})


def recorded_flags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags in a record. A record without them has its data set in the configuration of
    the model."""
    flags = dict(settings.get("flags", {}))
    for part in settings.values():
        if isinstance(part, Mapping) and "dataset" in part:
            flags.setdefault("dataset", part["dataset"])
    lists = {name: tuple(value) for name, value in flags.items() if isinstance(value, list)}
    return flags | lists  # tuples are lists in JSON


def passed_flags(args: RunOptions, argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the flags that the command line sets, and positional arguments, by name."""
    changed = {
        item.name: getattr(args, item.name)
        for item in dataclasses.fields(args)
        if getattr(args, item.name) != item.default
    }
    return explicit(args, argv, type(args)) | changed
