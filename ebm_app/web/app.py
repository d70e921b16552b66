"""The page: one choice of a model, and a tab for each thing to do."""

from functools import partial

import gradio as gr

from . import complete, diagnostics, generate, information, toy
from .models import Models, in_a_line
from .runs import AT_ONCE
from .score import tab as score

CACHE_SECONDS = 3600


def build_app(models: Models, seed: int = 0) -> gr.Blocks:
    """The page: a model to choose, and a tab for each thing to do with it or without one."""
    cache = (CACHE_SECONDS, CACHE_SECONDS)
    with gr.Blocks(title="ebm_app", analytics_enabled=False, delete_cache=cache) as app:
        gr.Markdown("# ebm_app\nMake digits, find odd images, and watch a density being learned.")
        with gr.Column() as choice:
            names = [(in_a_line(name, path), name) for name, path in models.folders.items()]
            model = gr.Dropdown(names, value=names[0][1], label="Model")
        with gr.Tabs() as tabs:
            with gr.Tab("Generate") as drawing:
                grid = generate.build(models, model, seed)
            with gr.Tab("Score", id="score") as scoring:
                upload, ways = score.build(models, model, seed)
            with gr.Tab("Complete") as completing:
                complete.build(models, model, seed)
            with gr.Tab("Toy") as training:
                toy.build(seed, models.device)
            with gr.Tab("Mutual information") as estimating:
                information.build(app, seed)
            with gr.Tab("Diagnostics") as checking:
                diagnostics.build(models, model, checking, seed)
        shown = {tabs: "score", ways: score.UPLOAD}
        generate.send_on_click(grid, model, upload, shown, models)
        for selected, visible in (
            ([drawing, scoring, completing, checking], True),
            ([training, estimating], "hidden"),  # they use none of the models
        ):
            triggers = [tab.select for tab in selected]
            gr.on(triggers, partial(gr.update, visible=visible), outputs=choice, **AT_ONCE)
    return app
