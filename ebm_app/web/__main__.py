"""Serve the web app, which generates and scores images with trained models.

python ui/app.py --model runs/digits
"""

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Annotated

# Must be set before torch is imported. Makes idle OpenMP threads sleep: spinning threads slow down
# concurrent processes tenfold.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from annotated_types import Ge, Le
from pydantic import StringConstraints

from ebm_app.command_line import CommonFlags, parse, run_script
from ebm_app.pretrained import BUNDLED, CONFIG_FILE, find_folder
from ebm_app.utils.errors import UserError
from ebm_app.utils.fields import configuration, setting
from ebm_app.utils.processes import resolve_device
from ebm_app.web import LOCAL_HOSTS
from ebm_app.web.app import build_app
from ebm_app.web.models import Models
from ebm_app.web.server import serve

#: Bundled model that is listed first
FIRST = "mnist"
#: Host name without scheme and port
HostName = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[\w-]+(\.[\w-]+)*$")]


@configuration(kw_only=True)
class Arguments(CommonFlags):
    model: str | None = setting("initially selected model: folder, bundled name or hub id", None)
    models_dir: str | None = setting("folder of runs to list as models", None)
    data_root: str = setting("folder of the data sets, in torchvision's layout", "data")
    host: str = setting("address to listen on; requires --auth if not localhost", "127.0.0.1")
    port: Annotated[int, Ge(1), Le(65_535)] = setting("port to listen on", 7860)
    auth: str | None = setting(
        "user:password of the web app; if not given, environment variable EBM_AUTH", None
    )
    no_auth: bool = setting("serve without a password if --host is not localhost", False)
    allowed_hosts: tuple[HostName, ...] = setting(
        "host names under which the web app may be requested; if not given, localhost, or any if "
        "--host is not localhost",
        (),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Load the models and serve the web app."""
    args = parse(Arguments, __doc__, argv)
    auth = check_auth(args.host, args.auth or os.environ.get("EBM_AUTH"), args.no_auth)
    any_host = args.host not in LOCAL_HOSTS and not args.allowed_hosts
    hosts = ["*"] if any_host else [*LOCAL_HOSTS, *args.allowed_hosts]
    folders = find_models(args.model, args.models_dir)

    models = Models(folders, resolve_device(args.device), args.data_root)
    first = next(iter(folders))
    if args.model is not None:
        models.open(first)  # report an invalid model before serving
    app = build_app(models, args.seed)
    # prepare the first model before the first request
    Thread(target=lambda: models.open(first), daemon=True).start()
    print(f"{serve(app, args.host, args.port, auth, hosts)} - stop with Ctrl-C", flush=True)
    app.block_thread()


def check_auth(host: str, auth: str | None, no_auth: bool = False) -> tuple[str, str] | None:
    """Return user and password from "user:password", or None for a web app without a password.

    Raises:
        UserError: if ``host`` is reachable from other machines and neither ``auth`` nor
            ``no_auth`` is given, or if ``auth`` is malformed.
    """
    if auth is None:
        if host in LOCAL_HOSTS or no_auth:
            return None
        raise UserError(
            f"--host {host} makes the web app reachable from other machines. Set a password with "
            "EBM_AUTH=user:password in the environment or --auth user:password, or allow everyone "
            "with --no_auth."
        )
    user, _, password = auth.partition(":")
    if not (user and password):
        raise UserError("--auth must have the form user:password.")
    return user, password


def find_models(model: str | None, models_dir: str | None) -> dict[str, Path]:
    """Return model folders by name: ``model`` first, then the bundled models, then the runs in
    ``models_dir`` and their checkpoints.

    Raises:
        UserError: if ``model`` or ``models_dir`` does not exist.
    """
    named: list[tuple[str, Path]] = []
    if model is not None:
        folder = find_folder(model)
        named.append((model if folder.parent == BUNDLED else folder.resolve().name, folder))
    named += sorted(_below(BUNDLED, "*"), key=lambda pair: pair[0] != FIRST)
    if models_dir is not None:
        if not Path(models_dir).is_dir():
            raise UserError(f"--models_dir '{models_dir}' is not a folder. Pass another folder.")
        named += [*_below(Path(models_dir), "*"), *_below(Path(models_dir), "*/*")]
    folders: dict[str, Path] = {}
    for name, folder in named:
        if not any(folder.samefile(other) for other in folders.values()):
            folders[f"{name} ({len(folders) + 1})" if name in folders else name] = folder
    return folders


def _below(root: Path, pattern: str) -> list[tuple[str, Path]]:
    files = sorted(root.glob(f"{pattern}/{CONFIG_FILE}"))
    return [(file.parent.relative_to(root).as_posix(), file.parent) for file in files]


if __name__ == "__main__":
    raise SystemExit(run_script(main))
