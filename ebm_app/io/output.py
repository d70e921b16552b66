"""What an evaluation leaves: a record in a folder that was made, tried and locked before."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ebm_app.io.errors import NotSaved, UserError
from ebm_app.io.locks import Lock
from ebm_app.io.run_record import RunRecord
from ebm_app.io.writing import explained_write


@contextmanager
def saving(folder: Path, metrics: dict[str, Any]) -> Iterator[None]:
    """Within it, a result is written to its folder.

    Raises:
        NotSaved: where the disk refuses, with the metrics, which a script prints all the same.
    """
    try:
        with explained_write(folder):
            yield
    except UserError as error:
        raise NotSaved(str(error), metrics) from None


class Output:
    """The record ``path`` and its folder, held by this process for as long as the object lives.

    Args:
        path: the record. settings: what it says was asked for.
        is_main: one of several processes writes; the others do nothing.

    Raises:
        UserError: at once, where the folder cannot be written or another process writes the same
            record.
    """

    def __init__(self, path: Path, settings: dict[str, Any], is_main: bool = True) -> None:
        self.folder, self.is_main = path.parent, is_main
        self.lock = Lock(path.with_name(path.name + ".lock")) if is_main else None
        self.record = RunRecord(path, settings)

    def write(self, metrics: dict[str, Any]) -> None:
        """The record as far as it is known."""
        if self.is_main:
            with explained_write(self.folder):
                self.record.write(metrics)

    def save(self, metrics: dict[str, Any]) -> None:
        """The record of the result; raises as ``saving`` does."""
        with self.saving(metrics):
            pass

    @contextmanager
    def saving(self, metrics: dict[str, Any]) -> Iterator[None]:
        """Write the record; within it, what else belongs to the result is written. Raises as the
        function ``saving`` does."""
        with saving(self.folder, metrics):
            self.write(metrics)
            yield
