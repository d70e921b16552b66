"""Server of the web app: access control, upload limits and style."""

import os
import re
from collections.abc import Sequence

import gradio as gr
from gradio.routes import templates
from jinja2 import ChoiceLoader, DictLoader
from PIL import Image
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebm_app.evaluation.held_out import SAMPLES_FILE
from ebm_app.pretrained import BUNDLED
from ebm_app.utils.errors import UserError

from . import LOCAL_HOSTS
from .shared import SUMMARY, TITLE

#: Max queued events. Further events are refused with a message.
MAX_QUEUE = 16
#: Max sessions whose state is kept in memory, about 0.3 MB each
MAX_SESSIONS = 256
#: Max upload size, and max pixels of an uploaded image, since a small file can decode to a huge
#: image
MAX_FILE_SIZE, MAX_IMAGE_PIXELS = "20mb", 16_000_000
#: Header of every response. Pages load nothing from other hosts. gradio has inline scripts and
#: styles, and compiles JavaScript.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' data: blob:; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'"
)
THEME = gr.themes.Default(
    primary_hue="teal", secondary_hue="teal", neutral_hue="slate"
).set(  # higher contrast than the defaults
    body_text_color_subdued="*neutral_600",
    body_text_color_subdued_dark="*neutral_300",
    link_text_color="*primary_700",
    link_text_color_hover="*primary_800",
    link_text_color_visited="*primary_700",
    button_primary_background_fill="*primary_700",
    button_primary_background_fill_dark="*primary_700",
    button_primary_background_fill_hover="*primary_800",
    button_primary_background_fill_hover_dark="*primary_800",
)
CSS = """
/* scale small images up to the frame without interpolation */
.pixels img { image-rendering: pixelated; object-fit: contain !important; }
/* keep the block label off the title of a plot */
[data-testid="matplotlib"] { padding-top: 2rem; }
/* gallery: five columns, as many rows as needed */
.small .grid-wrap { min-height: 0 !important; max-height: none !important; padding-top: 2rem; }
.small .grid-container {
  grid-template-columns: repeat(5, minmax(0, 1fr)) !important;
  grid-auto-rows: auto !important;
}
.small .gallery-item, .small .thumbnail-item { min-width: 0; width: 100%; }
/* captions below the images, not over them */
.small .thumbnail-item { height: auto; aspect-ratio: auto; }
.small .caption-label { position: static; max-width: none; margin: 0; white-space: normal; }
/* wrap table cells between words only */
.prose table th, .prose table td {
  border-color: var(--border-color-primary);
  word-break: normal; overflow-wrap: break-word; padding: 0.5rem;
}
.card { overflow-x: auto; }
/* no empty boxes before the first run */
.hide-empty:has([aria-label="Empty value"]), .hide-empty:has(.empty) { display: none !important; }
/* room for the answer, so that nothing moves while it is computed */
#answer { min-height: 13rem; }
/* narrow screens: show the result above the settings, and keep its height */
@media (max-width: 640px) {
  .first { order: -1; }
  #answer { min-height: 18rem; }
  #classes:has(.empty), #bits:has(.empty) {
    display: block !important; visibility: hidden; overflow: hidden; height: 9.5rem;
  }
  #bits:has(.empty) { height: calc(44vw + 1rem); }
  .small .caption-label { padding: 0.125rem; }
}
footer .divider { display: none !important; }
"""
#: Images that cannot be loaded, as after the end of the server, are left blank.
HEAD = """<script>
for (const [event, visibility] of [["error", "hidden"], ["load", ""]])
  addEventListener(event, ({ target }) => {
    if (target instanceof HTMLImageElement) target.style.visibility = visibility;
  }, true);
</script>"""


#: Picture of a link preview
PREVIEW_FILE = BUNDLED / "mnist" / SAMPLES_FILE
#: Preview of a link, by Jinja. The root is the address of this server.
PREVIEW = f"""
<meta property="og:type" content="website" />
<meta property="og:title" content="{TITLE}" />
<meta property="og:description" content="{SUMMARY}" />
<meta property="og:image" content="{{{{ config.root }}}}/preview.png" />
<meta name="twitter:card" content="summary" />
"""


def set_preview() -> None:
    """Replace the link preview in gradio's page, which shows gradio and its picture."""
    loader, name = templates.env.loader, "frontend/index.html"
    page = loader.get_source(templates.env, name)[0]
    page = re.sub(r'<meta\s[^>]*"(og|twitter):[^>]*>', "", page)
    page = page.replace("<head>", f"<head>{PREVIEW}", 1)
    templates.env.loader = ChoiceLoader([DictLoader({name: page}), loader])


class SecurityPolicy:
    """ASGI middleware that adds ``POLICY`` to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["Content-Security-Policy"] = POLICY
            await send(message)

        await self.app(scope, receive, send_with_policy)


def serve(
    app: gr.Blocks,
    host: str,
    port: int | None,
    auth: tuple[str, str] | None,
    allowed_hosts: Sequence[str] = LOCAL_HOSTS,
) -> str:
    """Serve the web app from a background thread and return its URL.

    Args:
        app: the web app.
        host, port: address to listen on. Without a port, the first free one from 7860.
        auth: user and password.
        allowed_hosts: values of the Host header that are accepted, which protects a local server
            from DNS rebinding.

    Raises:
        UserError: if the server cannot listen on the address.
    """
    Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS
    set_preview()
    for name in ("NO_PROXY", "no_proxy"):  # gradio requests its own address once at startup
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), *LOCAL_HOSTS]))
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
            theme=THEME,
            css=CSS,
            head=HEAD,
            prevent_thread_lock=True,
            quiet=True,
            app_kwargs={
                "routes": [Route("/preview.png", lambda request: FileResponse(PREVIEW_FILE))],
                "middleware": [
                    Middleware(SecurityPolicy),
                    Middleware(TrustedHostMiddleware, allowed_hosts=[*allowed_hosts]),
                ],
            },
        )
    except (OSError, OverflowError):
        raise UserError(
            f"Cannot listen on {host}:{port}: the port is in use or the address is invalid. "
            "Choose another --port."
        ) from None
    return app.local_url
