"""How the page is served: to whom, within which limits, and in which colours."""

import os
from collections.abc import Sequence

import gradio as gr
from PIL import Image
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from ebm_app.utils.errors import UserError

LOCAL_HOSTS = ("127.0.0.1", "localhost")
#: events that may wait; a visitor who comes when it is full gets a message, and nothing hangs
MAX_QUEUE = 16
#: visitors whose last run is kept in memory, a third of a megabyte each
MAX_SESSIONS = 256
#: of an upload. A picture of more pixels is refused, since a small file may hold one that fills
#: memory: the photos of most telephones pass
MAX_FILE_SIZE, MAX_IMAGE_PIXELS = "20mb", 16_000_000
CSS = """
/* also a picture of few pixels fills its frame, and stays sharp */
.pixels img { image-rendering: pixelated; object-fit: contain !important; }
/* a plot stands below its label, which would cover titles */
[data-testid="matplotlib"] { padding-top: 2rem; }
/* plots are drawn on white: their lightness is turned round, their hues stay */
.dark [data-testid="matplotlib"] img { filter: invert(0.88) hue-rotate(180deg); }
/* as many rows as there are */
.small .grid-wrap { min-height: 0 !important; max-height: none !important; }
.small .grid-container { grid-template-columns: repeat(5, 1fr) !important; }
.small .grid-wrap { padding-top: 2rem; }
.prose table th, .prose table td {
  border-color: var(--border-color-primary);
  /* no word goes on in the next line */
  word-break: normal; overflow-wrap: break-word; padding: 0.5rem;
}
/* on a telephone the picture stands above what it is made by */
@media (max-width: 640px) { .first { order: -1; } }
/* orange on white cannot be read; on a dark page it can */
:root:not(.dark) body:not(.dark) button[role="tab"][aria-selected="true"] {
  color: var(--primary-700);
}
"""


def check_auth(host: str, auth: str | None, no_auth: bool = False) -> tuple[str, str] | None:
    """User and password from "user:password", or None for a page without, which other machines
    reach where ``no_auth`` says so."""
    if auth is None:
        if host in LOCAL_HOSTS or no_auth:
            return None
        raise UserError(
            f"--host {host} lets others in: protect the page with EBM_AUTH=user:password in "
            "the environment or --auth user:password, or say --no_auth to let in everyone"
        )
    user, _, password = auth.partition(":")
    if not (user and password):
        raise UserError("--auth has another form: write it as user:password")
    return user, password


def serve(
    app: gr.Blocks,
    host: str,
    port: int | None,
    auth: tuple[str, str] | None,
    allowed_hosts: Sequence[str] = LOCAL_HOSTS,
) -> str:
    """Serve the page from a thread, on ``host`` and nowhere else, at a port or the first that is
    free from 7860 on; its address. It answers to the names ``allowed_hosts`` alone: on this
    machine a site of another name, which a browser was led to take for this machine, is not let
    through."""
    Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS
    for name in ("NO_PROXY", "no_proxy"):  # gradio calls its own page once at the start
        hosts = [os.environ.get(name), *LOCAL_HOSTS]
        os.environ[name] = ",".join(filter(None, hosts))
    theme = gr.themes.Default().set(  # colours of enough contrast to be read
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_hover_dark="*primary_800",
    )
    app.queue(max_size=MAX_QUEUE, default_concurrency_limit=1)
    try:
        app.launch(
            server_name=host,
            server_port=port,
            auth=auth,
            share=False,
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            run_history=False,
            max_file_size=MAX_FILE_SIZE,
            state_session_capacity=MAX_SESSIONS,
            footer_links=["api"],
            theme=theme,
            css=CSS,
            prevent_thread_lock=True,
            quiet=True,
            app_kwargs={
                "middleware": [Middleware(TrustedHostMiddleware, allowed_hosts=[*allowed_hosts])]
            },
        )
    except (OSError, OverflowError):
        raise UserError(
            f"cannot listen on {host}:{port}, which is in use or no port: give another --port"
        ) from None
    return app.local_url
