"""Held-out digits to try."""

from pathlib import Path
from tempfile import TemporaryDirectory

import gradio as gr

from ebm_app.data.images import load_images
from ebm_app.data.png import save_image, to_uint8

NUM_EXAMPLES = 10


def add_examples(upload: gr.Image, model: gr.Dropdown, digits: set[str]) -> None:
    """A row of held-out digits, shown while a model of digits is chosen."""
    data = load_images("digits")
    images = data.display(data.test[:NUM_EXAMPLES])
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
            label="Held-out digits, light on dark like the training data",
            type="index",
        )
    copies = [sample["path"] for (sample,) in row.samples]
    row.click(copies.__getitem__, row, upload, api_visibility="private")
    model.change(
        lambda name: gr.update(visible=name in digits), model, column, api_visibility="private"
    )
