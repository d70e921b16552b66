"""The tab that scores an image: its log-likelihood, with an uncertainty."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr
import numpy as np
import torch
from PIL import Image, ImageOps
from shared import ONE_AT_A_TIME, Load, explain_unreadable, explained, render
from torch import Tensor

from ebm_app.config import EBMConfig
from ebm_app.data.folder import read_image
from ebm_app.data.images import load_images
from ebm_app.errors import UserError
from ebm_app.images_io import save_image, to_uint8
from ebm_app.likelihood import Likelihood
from ebm_app.numerics import standard_error

MAX_REPEATS, NUM_EXAMPLES = 64, 10
CAVEAT = (
    "A high likelihood does not mean that an image is like the training data: smooth or empty "
    "images can score higher than any of them."
)
REPORT = """Log-likelihood: {log_prob:.2f} ± {log_prob_error:.2f} nats
Bits per dim: {bits:.4f} ± {bits_error:.4f} at eps {eps:g}
± is the standard error over {repeats} dequantisation draws, whose mean is a lower bound; \
integrating over time adds about {error:.1g} nats, with {nfe} evaluations a draw.
{caveat}"""


def score(
    load: Load, model: str, path: str | None, repeats: int, seed: int = 0
) -> Iterator[tuple[Image.Image, str]]:
    """Score an image file: (the image as the model sees it, a text), before and after the work.

    The uncertainty is that of dequantisation: the image is scored ``repeats`` times, each time
    with other noise inside its levels.

    Args:
        load: the model of a name. path: the file. seed: of the noise.

    Raises:
        UserError: for no file, or one that cannot be used.
    """
    if not path:
        raise UserError("there is no image to score: upload one or click on an example")
    if repeats < 2:
        raise UserError(f"an uncertainty needs at least 2 repeats, not {repeats}")
    ebm = load(model)
    image = preprocess(Path(path), ebm.config)
    seen = render(image, min_pixels=256)
    yield seen, "Scoring"
    result = ebm.log_prob(image.expand(repeats, -1, -1, -1), seed=seed)
    yield seen, report(result, ebm.config.eps)


def preprocess(path: Path, config: EBMConfig) -> Tensor:
    """An image file (1, C, H, W) on the model's grid of levels in [0, 1].

    The centre of the model's aspect ratio is cut out, its colours are kept or made grey, areas are
    averaged to the model's pixels, and each value goes to the nearest level.

    Raises:
        UserError: for a file that cannot be used, and a model of neither grey nor RGB images.
    """
    channels, height, width = config.image_shape
    if channels not in (1, 3):
        raise UserError(f"the model's images have {channels} channels: choose one of grey or RGB")
    try:
        image = read_image(path)
    except UserError as error:  # visitors need not know where uploads are kept
        raise UserError(str(error).replace(str(path), path.name)) from None
    image = image.convert("L" if channels == 1 else "RGB")
    image = ImageOps.fit(image, (width, height), method=Image.Resampling.BOX)
    pixels = torch.from_numpy(np.array(image)).reshape(height, width, channels).permute(2, 0, 1)
    top = config.num_levels - 1
    return ((pixels / 255 * top).round() / top).unsqueeze(0)


def report(result: Likelihood, eps: float) -> str:
    """The text on the scores of one image under several draws of the noise."""
    return REPORT.format(
        log_prob=result.log_prob.mean(),
        log_prob_error=standard_error(result.log_prob),
        bits=result.bits_per_dim.mean(),
        bits_error=standard_error(result.bits_per_dim),
        eps=eps,
        repeats=len(result.log_prob),
        error=result.error.mean(),
        nfe=result.nfe,
        caveat=CAVEAT,
    )


def build(load: Load, model: gr.Dropdown, digits: set[str], seed: int) -> None:
    """Put the tab on the page, with its endpoint /score.

    Args:
        model: the page's choice of a model. digits: the names of the models of digits.
        seed: of the noise.
    """
    with gr.Row():
        with gr.Column():
            upload = gr.Image(
                label="Image",
                type="filepath",
                image_mode=None,
                sources=["upload", "clipboard"],
                height=300,
                alt_text="The image to score",
                elem_classes="pixels",
            )
            explain_unreadable(upload)
            if digits:
                add_examples(upload, model, digits)
            repeats = gr.Slider(
                2,
                MAX_REPEATS,
                value=16,
                step=1,
                label="Repeats",
                info="draws of the dequantisation noise: more of them, less uncertainty",
            )
            start = gr.Button("Score", variant="primary")
        with gr.Column():
            seen = gr.Image(
                label="As the model sees it",
                format="png",
                interactive=False,
                height=300,
                buttons=["download"],
                alt_text="The image after resizing and rounding to the levels of the model",
                elem_classes="pixels",
            )
            text = gr.Textbox(label="Likelihood", interactive=False, lines=8)

    @explained
    def run(model: str, image: str | None, repeats: int) -> Iterator[tuple[Image.Image, str]]:
        """Score an image; returns it as the model sees it, and the likelihood as text."""
        yield from score(load, model, image, repeats, seed)

    start.click(
        run,
        [model, upload, repeats],
        [seen, text],
        api_name="score",
        show_progress="hidden",
        **ONE_AT_A_TIME,
    )
    gr.on(  # a score never stands beside another image or model than its own
        [upload.change, model.change],
        lambda: (None, ""),
        outputs=[seen, text],
        api_visibility="private",
    )


def add_examples(upload: gr.Image, model: gr.Dropdown, digits: set[str]) -> None:
    """A row of held-out digits, shown while a model of digits is chosen."""
    data = load_images("digits")
    images = data.test[:NUM_EXAMPLES] / (data.num_levels - 1)
    pixels = to_uint8(images).repeat(32, 1).repeat(32, 2)
    with (
        gr.Column(visible=model.value in digits) as column,
        TemporaryDirectory() as folder,  # the row keeps copies in gradio's cache
    ):
        files = [Path(folder) / f"digit-{index}.png" for index in range(len(pixels))]
        for file, digit in zip(files, pixels, strict=True):
            save_image(digit, file)
        row = gr.Dataset(
            components=[upload],
            samples=[[str(file)] for file in files],
            label="Held-out digits: light on dark, as the model has learned them",
            type="index",
        )
    copies = [sample["path"] for (sample,) in row.samples]
    row.click(copies.__getitem__, row, upload, api_visibility="private")
    model.change(
        lambda name: gr.update(visible=name in digits), model, column, api_visibility="private"
    )
