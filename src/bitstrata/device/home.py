"""The folder in which a device keeps its models, and the lock under which it is changed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from bitstrata.atomic import sync_directory
from bitstrata.errors import BitstrataError, NoSpace, StoreBusy, StoreProblem

VARIABLE = "BITSTRATA_HOME"

#: What a file system may answer to any call, as numbers of errors.
_OF_THE_DISK = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
}

#: Seconds to wait for another process to finish its change.
PATIENCE = 600.0


class Home:
    """Where things lie. Nothing is made before something is stored."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()
        self.blobs = self.root / "blobs"
        """Verified files by their sha256: manifests, strata, views, segments."""
        self.partial = self.root / "partial"
        """Files by their sha256 as far as they came."""
        self.models = self.root / "models"
        """One record per model."""

    def make(self) -> None:
        try:
            for folder in (self.blobs, self.partial, self.models):
                if not folder.is_dir():
                    folder.mkdir(parents=True, exist_ok=True)
                    sync_directory(folder.parent)
        except OSError as error:
            raise StoreProblem(
                f"the store {self.root} cannot be made or written: {error.strerror}. {VARIABLE} names another place"
            ) from error

    @contextmanager
    def locked(self, patience: float = PATIENCE, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """While only this process may change the store; the system gives the lock back when a process dies."""
        self.make()
        lock = FileLock(self.root / "lock", thread_local=False)
        try:
            try:
                lock.acquire(timeout=0)
            except Timeout:
                waiting()
                lock.acquire(timeout=patience)
        except Timeout:
            raise StoreBusy(
                f"another process has been changing {self.root} for {patience:.0f} s; try again when it is done"
            ) from None
        except OSError as error:
            raise StoreProblem(f"the store {self.root} cannot be locked: {error.strerror}") from error
        try:
            yield
        except OSError as error:
            raise self._explained(error) from error
        finally:
            lock.release()

    def _explained(self, error: OSError) -> OSError:
        """What the disk refused in the middle of a change, as an error that says so."""
        if isinstance(error, BitstrataError) or error.errno not in _OF_THE_DISK:
            return error
        kind = NoSpace if error.errno in {errno.ENOSPC, errno.EDQUOT} else StoreProblem
        file = f" ({error.filename})" if error.filename else ""
        return kind(
            error.errno,
            f"the store {self.root} could not be changed: {error.strerror}{file}. What it held is as it was; try again "
            f"when that is mended",
        )


def default_root() -> Path:
    """What BITSTRATA_HOME says, or the platform's folder for data of programs."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    from platformdirs import user_data_path

    return user_data_path("bitstrata", appauthor=False)
