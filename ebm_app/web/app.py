"""The page: one choice of a model, and a tab for each thing to do."""

import gradio as gr

from .arguments import Page
from .diagnostics import tab as diagnostics
from .generate import tab as generate
from .information import gaussian, own_data
from .models import Models
from .score import tab as score
from .toy import tab as toy

CACHE_SECONDS = 3600


def build_app(models: Models, seed: int = 0) -> gr.Blocks:
    """The page: a model to choose, and a tab for each thing to do with it or without one.

    Args:
        seed: of the first samples, the noise in log-likelihoods, and the first trainings.
    """
    cache = (CACHE_SECONDS, CACHE_SECONDS)
    with Page(title="ebm_app", analytics_enabled=False, delete_cache=cache) as app:
        gr.Markdown("# ebm_app\nEnergy-based models of images, learned from time scores.")
        names = list(models.folders)
        model = gr.Dropdown(names, value=names[0], label="Model")
        with gr.Tab("Generate"):
            generate.build(models.load, model, seed)
        with gr.Tab("Score"):
            score.build(models, model, seed)
        with gr.Tab("Toy"):
            toy.build(seed, models.device)
        with gr.Tab("Mutual information"):
            with gr.Tab("Paired Gaussians"):
                gaussian.build(seed, models.device)
            with gr.Tab("Your data"):
                own_data.build(seed, models.device)
        with gr.Tab("Diagnostics") as tab:
            diagnostics.build(models, model, tab, seed)
    return app
