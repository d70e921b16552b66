"""Flags that the training scripts share: what is trained on, where a run goes, how it starts."""

from dataclasses import replace
from pathlib import Path

from ebm_app.config import Side
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import advanced, configuration, from_attributes, setting


@configuration(kw_only=True)
class DataFlags:
    """What is trained on."""

    dataset: str = setting(
        "digits, mnist, fashion_mnist, cifar10, folder:PATH for your own image files, or hf:NAME "
        "for a data set of Hugging Face, by a folder or its name on the hub",
        "digits",
    )
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    download: bool = setting("fetch a missing data set", False)
    resolution: Side | None = advanced("side to resize the images of a folder to", None)


@configuration(kw_only=True)
class RunOptions:
    """Where a run goes and how it starts: ``init_from`` a model's weights, where that is given."""

    output_dir: Path | None = setting(
        "folder of everything that is written; runs/<dataset>-<kind> if not given", None
    )
    overwrite_output_dir: bool = setting("replace the run that is there", False)
    resume_from_checkpoint: str | None = setting(
        "latest, or the folder of a checkpoint to go on from", None
    )
    device: str = setting("auto, cpu or cuda", "auto")
    init_from: str | None = None

    def __post_init__(self) -> None:
        if self.resume_from_checkpoint and self.overwrite_output_dir:
            raise UserError(
                "--resume_from_checkpoint goes on with a run that --overwrite_output_dir removes: "
                "give one of them"
            )


def options_of(args: RunOptions, dataset: str, kind: str) -> RunOptions:
    """The options among a script's flags, with the folder that a run of this kind goes to."""
    options = from_attributes(RunOptions, args)
    name = dataset.replace("folder:", "").strip("/").replace("/", "-")
    return replace(options, output_dir=options.output_dir or Path(f"runs/{name}-{kind}"))
