"""The web app: a page per task, each with its address."""

from functools import partial

import gradio as gr

from . import card, generate, information, score, toy
from .models import Models
from .shared import AT_ONCE, TITLE

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
    app = gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=FILE_LIFETIME)
    builds = {
        "Score": partial(score.build, app, models, seed),
        "Generate": partial(generate.build, app, models, seed),
        "Toy": partial(toy.build, seed, models.device),
        "Mutual information": partial(information.build, seed, models.device),
        "Model": partial(card.build, app, models),
    }
    for name, build in builds.items():
        with app.route(name, PAGES[name]) if PAGES[name] else app:
            gr.Navbar(main_page_name="Score")
            if PAGES[name]:  # gradio gives all pages one title
                app.load(js=f"() => {{ document.title = '{name} · {TITLE}' }}", **AT_ONCE)
            build()
    return app
