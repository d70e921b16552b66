"""Where runs compute: threads, each of which takes the steps of its runs one at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from typing import Any


class Lane:
    """Runs that wait for each other and for no others: one of them is computed at a time, by the
    lane's own thread."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)


#: runs of minutes, every training among them (TSM needs torch's forward mode, which works in one
#: thread only), and those of seconds, which need not wait for them
LONG, QUICK = Lane("long"), Lane("quick")
_END = object()


def on_device(
    run: Callable[..., Iterator[Any]], lane: Lane = LONG
) -> Callable[..., AsyncIterator[Any]]:
    """A generator whose steps are computed by the thread of a lane.

    A run that is cancelled returns at once. Its step is computed to the end, since no
    thread can be interrupted; its result is dropped, and the steps of others come after it.
    """

    @wraps(run)
    async def steps(*args: Any) -> AsyncIterator[Any]:
        iterator, context = run(*args), copy_context()
        loop = asyncio.get_running_loop()
        try:
            while True:
                shown = await loop.run_in_executor(lane.thread, context.run, next, iterator, _END)
                if shown is _END:
                    return
                yield shown
        finally:
            lane.thread.submit(iterator.close)  # by that thread: after the step

    return steps
