"""Serve a web page that generates and scores images with trained models.

python ui/app.py --model runs/digits
"""

import os
from collections.abc import Sequence
from threading import Thread
from typing import Annotated

# Must be set before torch is imported. Makes idle OpenMP threads sleep: spinning threads slow down
# concurrent processes tenfold.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from annotated_types import Ge, Le
from pydantic import StringConstraints

from ebm_app.cli.command_line import CommonFlags, parse
from ebm_app.utils.fields import configuration, setting

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
        "user:password of the page; if not given, environment variable EBM_AUTH", None
    )
    no_auth: bool = setting("serve without a password if --host is not localhost", False)
    allowed_hosts: tuple[HostName, ...] = setting(
        "host names under which the page may be requested; if not given, localhost, or any if "
        "--host is not localhost",
        (),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Load the models and serve the page."""
    args = parse(Arguments, __doc__, argv)
    # gradio takes seconds to import, and --help does not need it
    from ebm_app.utils.processes import resolve_device
    from ebm_app.web.app import build_app
    from ebm_app.web.models import Models, find_models
    from ebm_app.web.server import LOCAL_HOSTS, check_auth, serve

    auth = check_auth(args.host, args.auth or os.environ.get("EBM_AUTH"), args.no_auth)
    any_host = args.host not in LOCAL_HOSTS and not args.allowed_hosts
    hosts = ["*"] if any_host else [*LOCAL_HOSTS, *args.allowed_hosts]
    folders, device = find_models(args.model, args.models_dir), resolve_device(args.device)
    models = Models(folders, device, args.data_root)
    if args.model is not None:
        models.load(next(iter(models.folders)))  # report an invalid model before serving
    app = build_app(models, args.seed)
    # load the first model before the first request
    Thread(target=models.map_threshold, args=(next(iter(models.folders)),), daemon=True).start()
    print(f"{serve(app, args.host, args.port, auth, hosts)} - stop with Ctrl-C", flush=True)
    app.block_thread()
