"""A web page that draws images from a trained model and finds the log-likelihood of images.

python ui/app.py --model runs/digits
"""

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

# before torch is imported: threads that have nothing to do sleep. Those that spin leave no core
# to the other lane of the page, or to other programs, and a step takes ten times as long
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from annotated_types import Ge, Le
from pydantic import StringConstraints

from ebm_app.cli.command_line import CommonFlags, parse
from ebm_app.utils.fields import Count, configuration, setting

#: without http:// and port
HostName = Annotated[str, StringConstraints(pattern=r"^(\*\.)?[\w-]+(\.[\w-]+)*$")]
#: settings of glibc's mallopt, by their numbers in malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = 1 << 20


def bound_memory() -> None:
    """Let blocks of a megabyte go back to the system when they are freed, whatever was freed
    before, and threads share two heaps: else each keeps what its largest run took. Where there is
    no glibc, nothing is done."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_TRIM_THRESHOLD, LARGE)
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_ARENA_MAX, 2)


@configuration(kw_only=True)
class Arguments(CommonFlags):
    """The command line."""

    model: str | None = setting("a folder, a bundled name or a hub id; offered first", None)
    models_dir: str | None = setting("a folder of runs, all of which are offered", None)
    data_root: str = setting("folder of the data sets in torchvision's layout", "data")
    host: str = setting("address to listen on; others need --auth", "127.0.0.1")
    port: Annotated[int, Ge(1), Le(65_535)] = setting("port to listen on", 7860)
    auth: str | None = setting(
        "user:password that visitors must give; EBM_AUTH in the environment if not given", None
    )
    no_auth: bool = setting("let in everyone who can reach --host", False)
    allowed_hosts: tuple[HostName, ...] = setting(
        "names by which the page may be called; any if --host lets others in", ()
    )
    seed: Count = setting("seed that the boxes of the page begin with", 0)


def main(argv: Sequence[str] | None = None) -> None:
    """Find the models and serve the page."""
    args = parse(Arguments, __doc__, argv)
    bound_memory()
    # seconds to import: --help does without
    from ebm_app.utils.processes import resolve_device
    from ebm_app.web.app import build_app
    from ebm_app.web.models import Models, find_models
    from ebm_app.web.server import LOCAL_HOSTS, check_auth, serve

    auth = check_auth(args.host, args.auth or os.environ.get("EBM_AUTH"), args.no_auth)
    is_open = args.host not in LOCAL_HOSTS and not args.allowed_hosts
    hosts = ["*"] if is_open else [*LOCAL_HOSTS, *args.allowed_hosts]
    folders, device = find_models(args.model, args.models_dir), resolve_device(args.device)
    models = Models(folders, device, args.data_root)
    if args.model is not None:
        models.load(next(iter(models.folders)))  # a mistake shows now, not on the page
    app = build_app(models, args.seed)
    print(f"{serve(app, args.host, args.port, auth, hosts)} - end with Ctrl-C", flush=True)
    app.block_thread()
