"""The web app: a page per task, each with its address."""

import gradio as gr

from . import card, generate, information, score, toy
from .models import Models
from .shared import TITLE

#: Interval in seconds of the check for old files, and age at which they are deleted
FILE_LIFETIME = (3600, 3600)
#: Name of each page and its address
PAGES = {
    "Score": "",
    "Generate": "generate",
    "Toy": "toy",
    "Mutual information": "mutual-information",
    "Model": "model",
}


def build_app(models: Models, seed: int = 0) -> gr.Blocks:
    """Build the web app.

    Args:
        models: models in the selector; the first one is selected.
        seed: initial value of the seed boxes.
    """
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=FILE_LIFETIME) as app:
        gr.Navbar(main_page_name="Score")
        score.build(app, models, seed)
    with app.route("Generate", PAGES["Generate"]):
        gr.Navbar(main_page_name="Score")
        generate.build(app, models, seed)
    with app.route("Toy", PAGES["Toy"]):
        gr.Navbar(main_page_name="Score")
        toy.build(seed, models.device)
    with app.route("Mutual information", PAGES["Mutual information"]):
        gr.Navbar(main_page_name="Score")
        information.build(seed, models.device)
    with app.route("Model", PAGES["Model"]):
        gr.Navbar(main_page_name="Score")
        card.build(app, models)
    return app
