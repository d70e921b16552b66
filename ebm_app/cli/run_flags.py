"""Flags of the training commands, and their restoration from the record of a run."""

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
#: Flags that must not change when a run is resumed
FIXED = ("dataset", "resolution", "image_column", "label_column", "size", "model")
#: Flags that may change, since images and weights are compared with the checkpoint
MOVABLE = ("data_root", "skip_bad", "flow", "init_from")


@configuration(kw_only=True)
class DataFlags:
    """Flags of the data set."""

    dataset: str = setting(
        "digits, mnist, fashion_mnist, cifar10, folder:PATH (image files), or hf:NAME (a Hugging "
        "Face data set, by its folder or its name on the hub)",
        "digits",
    )
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    download: bool = setting("download the data set if it is missing", False)
    skip_bad: bool = setting("skip files of a folder that are not readable images", False)
    resolution: Side | None = advanced("side to which images of a folder are resized", None)
    image_column: str | None = advanced("column of images, if a data set has several", None)
    label_column: str | None = advanced("column of labels, if a data set has several", None)


def run_options(args: RunOptions) -> RunOptions:
    """Return the run options, with the flags to store in the run record."""
    names = {item.name for item in dataclasses.fields(args)}
    flags = {name: getattr(args, name) for name in (*FIXED, *MOVABLE) if name in names}
    return from_attributes(RunOptions, args, flags=flags)


def resume(args: T, argv: Sequence[str] | None) -> tuple[T, dict[str, Any]]:
    """Return the arguments completed with the recorded flags of the run to resume, and its
    settings. For a new run, return the same arguments and {}.

    Raises:
        UserError: for a flag that contradicts the recorded run, or a new run in the folder of
            another run.
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
                f"--{name} is {passed[name]}, but the run to resume has {flags[name]}. Leave it "
                "out, or start a new run in another --output_dir."
            )
    return restore(args, argv, settings), settings


def restore(args: T, argv: Sequence[str] | None, settings: Mapping[str, Any]) -> T:
    """Return the arguments with flags that are not passed set to their values in the recorded
    ``settings`` of a run."""
    flags, passed = recorded_flags(settings), passed_flags(args, argv)
    if "init_from" in passed:
        flags.pop("flow", None)  # the model defines its own flow
    if passed.get("dataset", flags.get("dataset")) != flags.get("dataset"):
        for name in ("resolution", "image_column", "label_column"):  # of the recorded data set
            flags.pop(name, None)
    names = {item.name for item in dataclasses.fields(args)} - passed.keys()
    with user_errors("The record of the run"):
        return dataclasses.replace(args, **{name: flags[name] for name in names & flags.keys()})


def recorded_flags(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags in a record. If it has none, the data set comes from the configuration of
    the model."""
    flags = dict(settings.get("flags", {}))
    for section in settings.values():
        if isinstance(section, Mapping) and "dataset" in section:
            flags.setdefault("dataset", section["dataset"])
    lists = {name: tuple(value) for name, value in flags.items() if isinstance(value, list)}
    return flags | lists  # JSON stores tuples as lists


def passed_flags(args: RunOptions, argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the flags and positional arguments that the command line sets, by name."""
    changed = {
        item.name: getattr(args, item.name)
        for item in dataclasses.fields(args)
        if getattr(args, item.name) != item.default
    }
    return explicit(args, argv, type(args)) | changed
