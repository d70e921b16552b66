"""Visitors that come all at once: who is answered, who is turned away, and what it costs.

python tools/load.py --clients 50
"""

from ebm_app.io.start import run_script  # isort: skip  before what takes seconds

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import httpx
from annotated_types import Ge, Gt, Le

from ebm_app.io.command_line import given, parse, refuse
from ebm_app.io.errors import UserError
from ebm_app.io.fields import PositiveInt, configuration, setting

ANSWERED, TURNED_AWAY, HUNG, FAILED = "answered", "turned away", "hung", "failed"
QUEUE_FULL = "queue is full"
CALLS = "gradio_api/call"
#: each is a thread
Clients = Annotated[int, Ge(1), Le(1000)]
Seconds = Annotated[float, Gt(0), Le(86_400)]


class Visit(NamedTuple):
    """How a visitor fared, after how many seconds, and the server's last words."""

    outcome: str
    seconds: float
    words: str


def visit(url: str, endpoint: str, arguments: list[Any], timeout: float) -> Visit:
    """Call an endpoint as a page does: join the queue, then wait for the answer.

    Args:
        url: of the page, with a slash at the end. timeout: seconds without a word from the server.
    """
    begin = time.perf_counter()
    try:
        words = call(url, endpoint, arguments, timeout)
    except httpx.TimeoutException:
        return Visit(HUNG, time.perf_counter() - begin, f"no word in {timeout:g} s")
    except httpx.HTTPError as error:
        words = f"error {error}"
    return Visit(outcome(words), time.perf_counter() - begin, words[:200])


def call(url: str, endpoint: str, arguments: list[Any], timeout: float) -> str:
    """The kind and the data of the last event that the server sends, or the text of a refusal."""
    with httpx.Client(timeout=timeout, trust_env=False) as client:
        answer = client.post(f"{url}{CALLS}/{endpoint}", json={"data": arguments})
        if answer.status_code != 200:
            return answer.text
        event, last, words = answer.json()["event_id"], "", "no answer"
        with client.stream("GET", f"{url}{CALLS}/{endpoint}/{event}") as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    last = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    words = f"{last} {line.removeprefix('data: ')}"
        return words


def outcome(words: str) -> str:
    """What the last words of the server mean."""
    if words.startswith("complete "):
        return ANSWERED
    return TURNED_AWAY if QUEUE_FULL in words.lower() else FAILED


def memory(process: int | None, key: str) -> float | None:
    """MB of a process: ``VmRSS`` now, ``VmHWM`` at its highest; None where it is not known."""
    status = Path(f"/proc/{process}/status")
    if process is None or not status.is_file():
        return None
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) / 1024


@contextmanager
def own_page(model: str) -> Iterator[tuple[str, int]]:
    """A page of a model for as long as it is needed: its address, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).resolve().parent.parent / "ui" / "app.py"
    command = [sys.executable, str(script), "--model", model, "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
    try:
        line = server.stdout.readline()
        if not line.startswith("http"):
            raise UserError(f"the page of '{model}' did not start: see the message above")
        yield line.split()[0], server.pid
    finally:
        server.terminate()
        server.wait()


def send_visitors(url: str, process: int | None, args: Any) -> dict[str, Any]:
    """Send all visitors at once; seconds, and memory in MB."""
    arguments = [args.model, "pf_ode", args.num_images, args.num_steps, 0, False, False]
    one = visit(url, "generate", arguments, args.timeout)  # what the first call loads stays
    before = memory(process, "VmRSS")
    begin = time.perf_counter()
    with ThreadPoolExecutor(args.clients) as pool:
        calls = [
            pool.submit(visit, url, "generate", arguments, args.timeout)
            for _ in range(args.clients)
        ]
        visits = [call.result() for call in calls]
    seconds = time.perf_counter() - begin
    counts = Counter(found.outcome for found in visits)
    peak = memory(process, "VmHWM")
    time.sleep(args.rest)
    last = visit(url, "generate", arguments, args.timeout)
    failures = sorted({found.words for found in visits if found.outcome == FAILED})
    return {
        **{name.replace(" ", "_"): counts[name] for name in (ANSWERED, TURNED_AWAY, HUNG, FAILED)},
        "seconds": seconds,
        "seconds_of_one": one.seconds,
        "slowest_refusal": max(
            (found.seconds for found in visits if found.outcome == TURNED_AWAY), default=None
        ),
        "answers_afterwards": last.outcome == ANSWERED,
        "memory_before": before,
        "memory_peak": peak,
        "memory_after": memory(process, "VmRSS"),
        "failures": failures,
    }


@configuration(kw_only=True)
class Arguments:
    """The command line."""

    clients: Clients = setting("visitors that come at once", 50)
    model: str = setting("what they draw from, by its name on the page", "digits")
    num_images: PositiveInt = setting("images that each asks for", 16)
    num_steps: PositiveInt = setting("steps of the sampler", 6)
    timeout: Seconds = setting("seconds without a word that count as hung", 300.0)
    rest: Seconds = setting("seconds before the memory is read again", 10.0)
    url: str | None = setting("a page that is there already, with a slash at the end", None)
    process: PositiveInt | None = setting("number of its process, whose memory is read", None)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Run the load on a page of its own, or on one that is there."""
    args = parse(Arguments, __doc__, argv)
    if not args.url:
        refuse(given(args, argv), ["process"], "is of the page at --url: give it")
    if args.url:
        metrics = send_visitors(args.url, args.process, args)
    else:
        with own_page(args.model) as (url, process):
            metrics = send_visitors(url, process, args)
    print(json.dumps(metrics, indent=2))
    return metrics


if __name__ == "__main__":
    sys.exit(run_script(main))
