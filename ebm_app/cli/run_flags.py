"""Flags of the training commands, and those that a resumed run takes from its record."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from ebm_app.cli.command_line import explicit
from ebm_app.config import Side
from ebm_app.training.plan import RunOptions
from ebm_app.training.run_folder import recorded_flags, recorded_run, refuse_to_overwrite
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


def output_folder(args: RunOptions, dataset: str, kind: str) -> Path:
    """Return the output folder: that of the flags, of the checkpoint to resume from, or
    runs/<dataset>-<kind>."""
    checkpoint = args.resume_from_checkpoint
    if args.output_dir is not None:
        return args.output_dir
    if checkpoint and os.path.isdir(checkpoint):
        return Path(checkpoint).parent
    name = dataset.replace("folder:", "").strip("/").replace("/", "-")
    return Path(f"runs/{name}-{kind}")


def run_options(args: RunOptions, dataset: str, kind: str) -> RunOptions:
    """Return the run options among the flags, with the output folder of a run of this kind. They
    hold the flags that a resumed run restores."""
    names = {item.name for item in dataclasses.fields(args)} & {*FIXED, *MOVABLE}
    flags = {name: getattr(args, name) for name in sorted(names)}
    folder = output_folder(args, dataset, kind)
    return dataclasses.replace(
        from_attributes(RunOptions, args), output_dir=folder, flags={**flags, "dataset": dataset}
    )


def refuse_used_folder(args: RunOptions) -> None:
    """Raise a UserError if the flags start a new run in a folder that already holds one."""
    if args.output_dir and not (args.overwrite_output_dir or args.resume_from_checkpoint):
        refuse_to_overwrite(args.output_dir)


def restore(
    args: T, argv: Sequence[str] | None, dataset: str, kind: str
) -> tuple[T, dict[str, Any]]:
    """Return the arguments and the settings of the run to resume; for a new run, the same
    arguments and {}.

    Args:
        dataset, kind: select the default output folder.

    Raises:
        UserError: naming a flag that contradicts the run.
    """
    name, folder = args.resume_from_checkpoint, output_folder(args, dataset, kind)
    if not name:
        return args, {}
    settings, flags = recorded_run(folder, name)
    own = {item.name: item.default for item in dataclasses.fields(args)}
    flags = {  # tuples are lists in JSON
        name: tuple(value) if isinstance(value, list) else value
        for name, value in flags.items()
        if name in own
    }
    chosen = {name: getattr(args, name) for name in flags}
    passed = explicit(args, argv, type(args))
    passed |= {name: value for name, value in chosen.items() if value != own[name]}
    for name in set(FIXED) & flags.keys() & passed.keys():
        if passed[name] != flags[name]:
            raise UserError(
                f"--{name} is {passed[name]}, but the run to resume has {flags[name]}. Leave out "
                f"--{name}, or start a new run in another --output_dir."
            )
    restored = {name: value for name, value in flags.items() if name not in passed}
    with user_errors("The record of the run to resume"):
        return dataclasses.replace(args, **restored), settings


def with_data_of(args: T, argv: Sequence[str] | None, record: Path) -> T:
    """Return the arguments with the data set and the flow of a run record, unless the flags choose
    a data set."""
    passed, names = (
        explicit(args, argv, type(args)),
        ("dataset", "data_root", "resolution", "flow"),
    )
    if "dataset" in passed:
        return args
    flags = recorded_flags(record)
    chosen = {name: flags[name] for name in names if name in flags and name not in passed}
    with user_errors(str(record)):
        return dataclasses.replace(args, **chosen)
