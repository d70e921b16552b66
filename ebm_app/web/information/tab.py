"""The tab on mutual information: of Gaussians with a known value, and of a visitor's own data."""

import gradio as gr

from . import gaussian, own_data


def build(seed: int, device: str) -> None:
    """Put the tab on the page, with its endpoints /mi_gaussian, /mi_example and /mi.

    Args:
        seed: the one to begin with. device: where the work is done.
    """
    with gr.Tab("Paired Gaussians"):
        gaussian.build(seed, device)
    with gr.Tab("Your data"):
        own_data.build(seed, device)
