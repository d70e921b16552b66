"""Whoever leaves the terminal, and whatever the disk refuses: a sentence or none."""

import os
import sys

import pytest

from ebm_app.io.start import run_script


def closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


LOST = {"closed": lambda: None, "full": lambda: open("/dev/full", "w"), "left": closed_pipe}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST)
def test_a_lost_terminal_ends_no_run(monkeypatch, capsys, lost):
    done = []

    def main(argv):
        for _ in range(1_000):
            print("a line of many words")
            print("a bar", file=sys.stderr, flush=True)
        done.append(True)
        return {"figure": 1}

    for name, code in (("stderr", 0), ("stdout", 2)):
        with monkeypatch.context() as patch:
            stream = lost()
            patch.setattr(sys, name, stream)
            assert run_script(main) == code
            if stream is not None:
                stream.close()
    assert len(done) == 2 and "read them in the record" in capsys.readouterr().err


def test_what_the_disk_refuses_is_one_sentence(capsys):
    def main(argv):
        open("/proc/none\n/here")

    assert run_script(main) == 2
    assert capsys.readouterr().err == (
        "error: /proc/none /here cannot be used (No such file or directory): mend that\n"
    )
