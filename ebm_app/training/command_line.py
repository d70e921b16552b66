"""The flags that the training scripts share."""

from argparse import Namespace
from pathlib import Path

from ebm_app.data.images import DATASETS, ImageData, load_images
from ebm_app.io.cli import Parser, described, flag
from ebm_app.io.errors import UserError
from ebm_app.io.fields import PositiveInt
from ebm_app.models.config import Side
from ebm_app.training.launch import RunOptions


def add_data_flags(parser: Parser) -> None:
    """What is trained on."""
    add = parser.group("data").add_argument
    kinds = f"folder:PATH for your own image files, or {described(DATASETS)}"
    add("--dataset", default="digits", metavar="NAME", help=kinds)
    add("--data_root", default="data", metavar="DIR", help="folder of downloaded data sets")
    add("--download", action="store_true", help="fetch a missing data set")
    add(
        "--resolution",
        type=flag(Side),
        metavar="N",
        help="side to resize the images of a folder to",
    )


def add_run_flags(parser: Parser) -> None:
    """Where a run goes, and how it starts."""
    add, rare = parser.group("run").add_argument, parser.group("advanced").add_argument
    where = "folder of everything that is written (default: runs/<dataset>-<kind>)"
    add("--output_dir", metavar="DIR", help=where)
    add("--overwrite_output_dir", action="store_true", help="replace the run that is there")
    resume = "latest, or the folder of a checkpoint to go on from"
    add("--resume_from_checkpoint", metavar="DIR", help=resume)
    add("--device", default="auto", metavar="NAME", help="auto, cpu or cuda")
    processes = "fail if fewer processes have started"
    rare("--expect_processes", type=flag(PositiveInt), default=1, metavar="N", help=processes)


#: the names of these flags
OWN_FLAGS = frozenset(
    "dataset data_root download resolution output_dir resume_from_checkpoint overwrite_output_dir "
    "expect_processes device".split()
)


def images_of(args: Namespace) -> ImageData:
    """The data set that the flags name."""
    return load_images(args.dataset, args.data_root, args.download, args.resolution)


def options_of(args: Namespace, kind: str) -> RunOptions:
    """Where a run of this kind goes, and how it starts."""
    if args.resume_from_checkpoint and args.overwrite_output_dir:
        raise UserError(
            "--resume_from_checkpoint goes on with a run that --overwrite_output_dir removes: "
            "give one of them"
        )
    name = args.dataset.replace("folder:", "").strip("/").replace("/", "-")
    return RunOptions(
        Path(args.output_dir or f"runs/{name}-{kind}"),
        device=args.device,
        resume_from_checkpoint=args.resume_from_checkpoint,
        overwrite_output_dir=args.overwrite_output_dir,
        init_from=getattr(args, "init_from", None),
        expect_processes=args.expect_processes,
    )
