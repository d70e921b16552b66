"""Scripts in processes of their own, which start with everything imported."""

import multiprocessing
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout

import torch
from accelerate.state import AcceleratorState
from conftest import free_port, load_script

from ebm_app.command_line import run_script
from ebm_app.training import loop
from ebm_app.training.batches import Batches
from ebm_app.utils.processes import StopSignals

#: where a fork is not safe, the processes import all again
SAFE = sys.platform == "linux" and not torch.cuda.is_available()
CONTEXT = multiprocessing.get_context("fork" if SAFE else "spawn")


def run(path, flags, output, num=1, stop=()):
    """Return the exit codes of a script run by ``num`` processes, as torchrun would start them.

    Args:
        output: file to which the processes print.
        stop: "batch" or "validate", step and signal: before this call, every process, or only the
            one of the given rank, sends itself the signal.
    """
    port, words = str(free_port()), [str(flag) for flag in flags]
    arguments = [(path, words, output, (k, num), port, stop) for k in range(num)]
    processes = [CONTEXT.Process(target=_work, args=each) for each in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        process.kill()
        process.join()
    return {process.exitcode for process in processes}


def _work(path, flags, output, place, port, stop):
    for signum in StopSignals.caught:  # who runs the tests may ignore them
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank, num = place
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num, "LOCAL_WORLD_SIZE": num}
    names |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if num > 1:
        os.environ.update({name: str(value) for name, value in names.items()})
    AcceleratorState._reset_state(reset_partial_state=True)
    if stop:
        name, step, signum, *ranks = stop
        place, step_of = {
            "batch": (Batches, lambda batches, step, rows: step),
            "validate": (loop, lambda run: run.state.step),
        }[name]
        call = getattr(place, name)

        def stopped(*args):
            if step_of(*args) == step and rank in (ranks or [rank]):
                os.kill(os.getpid(), signum)
            return call(*args)

        setattr(place, name, stopped)
    with output.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        code = run_script(load_script(path).main, flags)
    sys.exit(code)
