"""A web page that draws images from a trained model and finds the log-likelihood of images.

python ui/app.py --model runs/digits
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import os
import sys
from collections.abc import Sequence
from typing import Annotated

# before torch is imported: threads that have nothing to do sleep. Those that spin leave no core
# to the other lane of the page, or to other programs, and a step takes ten times as long
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from annotated_types import Ge, Le

from ebm_app.io.cli import Parser, flag, resolve_device
from ebm_app.io.fields import Count
from ebm_app.web.models import Models, find_models

Port = Annotated[int, Ge(1), Le(65_535)]


def main(argv: Sequence[str] | None = None) -> None:
    """Find the models and serve the page."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model", help="a folder, a bundled name or a hub id; offered first")
    add("--models_dir", help="a folder of runs, all of which are offered")
    add("--data_root", default="data", help="folder of the data sets in torchvision's layout")
    add("--host", default="127.0.0.1", help="address to listen on; others need --auth")
    add("--port", type=flag(Port), default=7860, help="port to listen on")
    auth = "user:password that visitors must give; EBM_AUTH in the environment if not given"
    add("--auth", help=auth)
    add("--no_auth", action="store_true", help="let in everyone who can reach --host")
    hosts = "names by which the page may be called; any if --host lets others in"
    add("--allowed_hosts", nargs="+", metavar="NAME", default=(), help=hosts)
    parser.add_common(Count)  # what the boxes of the page hold
    args = parser.parse_args(argv)
    # seconds to import: --help does without
    from ebm_app.web.app import build_app
    from ebm_app.web.server import check_auth, check_hosts, serve

    auth = check_auth(args.host, args.auth or os.environ.get("EBM_AUTH"), args.no_auth)
    hosts = check_hosts(args.host, args.allowed_hosts)
    folders, device = find_models(args.model, args.models_dir), resolve_device(args.device)
    models = Models(folders, device, args.data_root)
    if args.model is not None:
        models.load(next(iter(models.folders)))  # a mistake shows now, not on the page
    app = build_app(models, args.seed)
    print(f"{serve(app, args.host, args.port, auth, hosts)} - end with Ctrl-C", flush=True)
    app.block_thread()


if __name__ == "__main__":
    sys.exit(run_script(main))
