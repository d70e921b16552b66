"""Flags of the scripts that are still read by argparse."""

from ebm_app.evaluation.held_out import held_out, open_model
from ebm_app.io.cli import Parser, flag
from ebm_app.io.fields import BatchSize, Draws, Several
from ebm_app.models.config import Margin

__all__ = ["add_data_flags", "held_out", "open_model"]


def add_data_flags(parser: Parser, batch_size: int = 128) -> None:
    """The flags of a script that evaluates a model on held-out images."""
    add = parser.add_argument
    add("model", help="a folder, a bundled name or a hub id")
    add("--dataset", help="the model's own if not given")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--download", action="store_true", help="fetch a missing data set")
    add("--split", default="test", help="train, validation or test")
    add("--limit", type=flag(Several), help="take the first images only")
    add("--repeats", type=flag(Draws), default=4, help="dequantisation draws of each image")
    add("--batch_size", type=flag(BatchSize), default=batch_size, help="images taken together")
    eps = "margin left at t = 1; the model's own if not given"
    add("--eps", type=flag(Margin), help=eps)
