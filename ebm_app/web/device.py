"""Where runs compute: one thread, which takes their steps one at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import wraps
from typing import Any

_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")
_END = object()


def on_device(run: Callable[..., Iterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    """A generator whose steps are computed by the thread of the device.

    Whoever cancels it is let go at once. The step at which it was is computed to its end, since no
    thread can be interrupted; its result is dropped, and the steps of others come after it.
    """

    @wraps(run)
    async def steps(*args: Any) -> AsyncIterator[Any]:
        iterator, context = run(*args), copy_context()
        loop = asyncio.get_running_loop()
        try:
            while True:
                shown = await loop.run_in_executor(_THREAD, context.run, next, iterator, _END)
                if shown is _END:
                    return
                yield shown
        finally:
            _THREAD.submit(iterator.close)  # by that thread: after the step

    return steps
