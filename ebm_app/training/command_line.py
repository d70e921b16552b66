"""The flags that the training scripts share."""

from argparse import Namespace
from pathlib import Path

from ebm_app.data.images import ImageData, load_images
from ebm_app.runs.cli import Parser
from ebm_app.training.launch import RunOptions


def add_run_flags(parser: Parser) -> None:
    """The flags of every training: what is trained on, where all goes, how it starts."""
    add = parser.add_argument
    add("--dataset", default="digits", help="digits, mnist, fashion_mnist, cifar10 or folder:PATH")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--resolution", type=int, help="resize and crop the images of a folder to this size")
    add("--output_dir", help="where all goes; runs/<dataset>-<kind> if not given")
    add("--resume_from_checkpoint", help="latest, or a checkpoint's folder")
    add("--overwrite_output_dir", action="store_true", help="replace the run that is there")
    add("--expect_processes", type=int, default=1, help="fail if fewer processes have started")
    add("--device", default="auto", help="auto, cpu or cuda")


#: the names of these flags
RUN_FLAGS = frozenset(
    "dataset data_root download resolution output_dir resume_from_checkpoint overwrite_output_dir "
    "expect_processes device".split()
)


def images_of(args: Namespace) -> ImageData:
    """The data set that the flags name."""
    return load_images(args.dataset, args.data_root, args.download, args.resolution)


def options_of(args: Namespace, kind: str) -> RunOptions:
    """Where a run of this kind goes, and how it starts."""
    name = args.dataset.replace("folder:", "").strip("/").replace("/", "-")
    return RunOptions(
        Path(args.output_dir or f"runs/{name}-{kind}"),
        device=args.device,
        resume_from_checkpoint=args.resume_from_checkpoint,
        overwrite_output_dir=args.overwrite_output_dir,
        init_from=getattr(args, "init_from", None),
        expect_processes=args.expect_processes,
    )
