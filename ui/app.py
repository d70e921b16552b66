"""A web page that draws images from a trained model and scores images with it.

python ui/app.py --model runs/digits
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read once, when gradio is imported

import generate  # noqa: E402
import gradio as gr  # noqa: E402
import information  # noqa: E402
import score  # noqa: E402
import toy  # noqa: E402
from PIL import Image  # noqa: E402
from shared import MAX_SEED  # noqa: E402

from ebm_app.cli import Parser, resolve_device, run_script  # noqa: E402
from ebm_app.config import read_json  # noqa: E402
from ebm_app.ebm import EBM  # noqa: E402
from ebm_app.errors import UserError, choose  # noqa: E402
from ebm_app.folders import BUNDLED, CONFIG_FILE, WEIGHTS_FILE, find_folder  # noqa: E402

LOCAL_HOSTS = ("127.0.0.1", "localhost")
MAX_FILE_SIZE, MAX_IMAGE_PIXELS = "20mb", 25_000_000
CACHE_SECONDS = 3600
CSS = ".pixels img { image-rendering: pixelated; }"


class Models:
    """The models a visitor may choose, by name; no other folder is ever opened.

    Args:
        folders: name to folder. device: where models run.
    """

    def __init__(self, folders: dict[str, Path], device: str = "cpu") -> None:
        self.folders, self.device = folders, device
        self._key, self._ebm = None, None

    def load(self, name: str) -> EBM:
        """The model of a name. The last one is kept until its files change.

        Raises:
            UserError: for an unknown name, or a folder that does not hold a model.
        """
        folder = self.folders[choose("model", name, self.folders)]
        files = [folder / CONFIG_FILE, folder / WEIGHTS_FILE]
        key = (name, [file.stat().st_mtime_ns for file in files if file.exists()])
        if key != self._key:
            try:
                self._ebm = EBM.from_pretrained(folder, self.device)
            except UserError as error:  # visitors need not know where models are kept
                raise UserError(str(error).replace(str(folder), name)) from None
            self._key = key
        return self._ebm

    def of_dataset(self, dataset: str) -> set[str]:
        """The names of the models that were trained on a data set."""
        return {name for name, folder in self.folders.items() if _dataset(folder) == dataset}


def _dataset(folder: Path) -> str | None:
    try:
        return read_json(folder / CONFIG_FILE).get("dataset")
    except (UserError, AttributeError):  # such a model is explained when it is chosen
        return None


def find_models(model: str | None, models_dir: str | None) -> dict[str, Path]:
    """The models to offer: ``model`` first, then the bundled ones, then those in ``models_dir``.

    Args:
        model: a folder, a bundled name or a hub id.
        models_dir: a folder of runs; their checkpoints are models too.

    Raises:
        UserError: where none is found, or what was asked for is not there.
    """
    found: dict[str, Path] = {}
    for name, folder in _candidates(model, models_dir):
        if any(folder.samefile(other) for other in found.values()):
            continue
        found[f"{name} ({len(found) + 1})" if name in found else name] = folder
    if not found:
        raise UserError(
            "no model was found: train one, python train/ebm.py --output_dir runs/digits, and "
            "pass it with --model runs/digits"
        )
    return found


def _candidates(model: str | None, models_dir: str | None) -> Iterator[tuple[str, Path]]:
    if model is not None:
        folder = find_folder(model)
        yield (model if folder.parent == BUNDLED else folder.resolve().name), folder
    if BUNDLED.is_dir():
        yield from _below(BUNDLED, "*")
    if models_dir is not None:
        if not Path(models_dir).is_dir():
            raise UserError(f"there is no folder '{models_dir}': give another --models_dir")
        yield from _below(Path(models_dir), "*")
        yield from _below(Path(models_dir), "*/*")


def _below(root: Path, pattern: str) -> list[tuple[str, Path]]:
    files = sorted(root.glob(f"{pattern}/{CONFIG_FILE}"))
    return [(file.parent.relative_to(root).as_posix(), file.parent) for file in files]


def check_auth(host: str, auth: str | None) -> tuple[str, str] | None:
    """User and password from "user:password".

    Raises:
        UserError: for another form, or none of them where other machines can reach the page.
    """
    if auth is None:
        if host not in LOCAL_HOSTS:
            raise UserError(
                f"--host {host} lets others in: protect the page with --auth user:password"
            )
        return None
    user, _, password = auth.partition(":")
    if not (user and password):
        raise UserError("--auth has another form: write it as user:password")
    return user, password


def build_app(models: Models, seed: int = 0) -> gr.Blocks:
    """The page, with the endpoints of its tabs.

    Args:
        seed: of the first samples, the noise in scores, and the first trainings.
    """
    cache = (CACHE_SECONDS, CACHE_SECONDS)
    with gr.Blocks(title="ebm_app", analytics_enabled=False, delete_cache=cache) as app:
        gr.Markdown("# ebm_app\nEnergy-based models of images, learned from time scores.")
        names = list(models.folders)
        model = gr.Dropdown(names, value=names[0], label="Model")
        with gr.Tab("Generate"):
            generate.build(models.load, model, seed)
        with gr.Tab("Score"):
            score.build(models.load, model, models.of_dataset("digits"), seed)
        with gr.Tab("Toy"):
            toy.build(seed, models.device)
        with gr.Tab("Mutual information"):
            information.build(seed, models.device)
    return app.queue(max_size=16, default_concurrency_limit=1)


def serve(app: gr.Blocks, host: str, port: int, auth: tuple[str, str] | None) -> str:
    """Serve the page from a thread, on ``host`` and nowhere else; its address.

    Raises:
        UserError: where the port cannot be used.
    """
    Image.MAX_IMAGE_PIXELS = MAX_IMAGE_PIXELS  # a small file may hold a picture that fills memory
    for name in ("NO_PROXY", "no_proxy"):  # gradio calls its own page once at the start
        hosts = [os.environ.get(name), *LOCAL_HOSTS]
        os.environ[name] = ",".join(filter(None, hosts))
    theme = gr.themes.Default().set(
        body_text_color_subdued="*neutral_600", body_text_color_subdued_dark="*neutral_300"
    )
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
            footer_links=["api"],
            theme=theme,
            css=CSS,
            prevent_thread_lock=True,
            quiet=True,
        )
    except (OSError, OverflowError):
        raise UserError(
            f"cannot listen on {host}:{port}, which is in use or no port: give another --port"
        ) from None
    return app.local_url


def main(argv: Sequence[str] | None = None) -> None:
    """Find the models and serve the page."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model", help="a folder, a bundled name or a hub id; offered first")
    add("--models_dir", help="a folder of runs, all of which are offered")
    add("--host", default="127.0.0.1", help="address to listen on; others need --auth")
    add("--port", type=int, default=7860, help="port to listen on")
    add("--auth", help="user:password that visitors must give")
    parser.add_common()
    args = parser.parse_args(argv)
    auth = check_auth(args.host, args.auth)
    if not 0 <= args.seed <= MAX_SEED:
        raise UserError(f"--seed {args.seed} is out of range: give 0 to {MAX_SEED}")
    models = Models(find_models(args.model, args.models_dir), resolve_device(args.device))
    if args.model is not None:
        models.load(next(iter(models.folders)))  # a mistake shows now, not on the page
    app = build_app(models, args.seed)
    print(f"{serve(app, args.host, args.port, auth)} - end with Ctrl-C", flush=True)
    app.block_thread()


if __name__ == "__main__":
    sys.exit(run_script(main))
