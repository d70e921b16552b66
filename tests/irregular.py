"""File system entries that are not regular files."""

import os
import socket

KINDS = ("folder", "fifo", "device", "broken", "circle", "socket", "nothing")


def put_irregular(path, kind):
    """Create an entry of one of ``KINDS`` at ``path``; the paths of sockets must be short."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))
    elif kind != "nothing":
        targets = {"device": "/dev/zero", "broken": "nowhere", "circle": path.name}
        path.symlink_to(targets[kind])
