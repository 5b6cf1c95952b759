"""A file is replaced whole or not at all, and nothing is left lying beside it."""

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from bitstrata.atomic import remove_partial, write_atomically

OLD, NEW = b"the old content", b"the new content, which is longer"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "manifest.json"
    path.write_bytes(OLD)
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def raising(error: BaseException) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


def test_a_new_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "new", NEW)
    assert contents(tmp_path) == {"new": NEW}


def test_an_old_file_is_replaced(target: Path) -> None:
    write_atomically(str(target), NEW)
    assert contents(target.parent) == {target.name: NEW}
    write_atomically(target, b"")
    assert contents(target.parent) == {target.name: b""}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "disk full"), KeyboardInterrupt()], ids=["full", "interrupt"])
@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_the_old_file_survives_a_failing_system_call(
    target: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    monkeypatch.setattr(os, call, raising(error))
    with pytest.raises(type(error)):
        write_atomically(target, NEW)
    assert contents(target.parent) == {target.name: OLD}


def test_the_old_file_survives_a_failing_write(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.fdopen

    class Full:
        """A file on a disk that is full after five bytes."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, content: bytes) -> None:
            self.file.write(content[:5])
            self.file.flush()
            raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "fdopen", lambda *arguments, **options: Full(opened(*arguments, **options)))
    with pytest.raises(OSError, match="disk full"):
        write_atomically(target, NEW)
    assert contents(target.parent) == {target.name: OLD}


def test_content_that_cannot_be_written_leaves_the_old_file(target: Path) -> None:
    with pytest.raises(TypeError):
        write_atomically(target, "text")  # type: ignore[arg-type]
    assert contents(target.parent) == {target.name: OLD}


def test_a_failure_after_the_rename_leaves_the_new_file_whole(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = False
    rename, sync = os.replace, os.fsync

    def noting_replace(source: Any, destination: Any) -> None:
        nonlocal replaced
        rename(source, destination)
        replaced = True

    def failing_for_the_folder(handle: int) -> None:
        if replaced:
            raise OSError(errno.EIO, "broken disk")
        sync(handle)

    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "fsync", failing_for_the_folder)
    with pytest.raises(OSError, match="broken disk"):
        write_atomically(target, NEW)
    assert contents(target.parent) == {target.name: NEW}


def test_the_content_reaches_the_disk_before_the_name_and_the_name_after(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    rename, sync = os.replace, os.fsync

    def noting_replace(source: Any, destination: Any) -> None:
        assert Path(source).read_bytes() == NEW
        assert Path(source).parent == target.parent, "a rename is atomic within one file system only"
        seen.append("rename")
        rename(source, destination)

    def noting_sync(handle: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        sync(handle)

    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "fsync", noting_sync)
    write_atomically(target, NEW)
    assert seen == ["file", "rename", "folder"]


def test_a_folder_that_cannot_be_opened_is_no_failure(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def no_folders(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "folders cannot be opened here")
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", no_folders)
    write_atomically(target, NEW)
    assert contents(target.parent) == {target.name: NEW}


def test_no_handle_stays_open(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    if not Path("/proc/self/fd").exists():
        pytest.skip("open handles cannot be counted here")
    before = count()
    write_atomically(target, NEW)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", raising(OSError("refused")))
        with pytest.raises(OSError, match="refused"):
            write_atomically(target, OLD)
    assert count() == before


def test_a_missing_folder_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "missing" / "file", NEW)
    assert contents(tmp_path) == {}


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_a_file_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    """Others must be able to read what was published: a web server, or the other ranks' users."""
    (tmp_path / "plain").write_bytes(NEW)
    write_atomically(tmp_path / "atomic", NEW)
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_writers_at_the_same_time_leave_one_whole_file(target: Path) -> None:
    versions = [bytes([letter]) * 50_000 for letter in b"abcd"]
    failures: list[BaseException] = []

    def write(content: bytes) -> None:
        try:
            for _ in range(5):
                write_atomically(target, content)
                assert target.read_bytes() in versions
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert list(contents(target.parent)) == [target.name]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept = {"run [1].pt", ".run [1].pt.backup", ".run 1.pt.ab12.partial", "other.partial"}
    for name in (*kept, ".run [1].pt.ab12.partial", ".run [1].pt.cd34.partial"):
        (tmp_path / name).write_bytes(OLD)
    remove_partial(tmp_path / "run [1].pt")
    assert set(contents(tmp_path)) == kept


def test_a_killed_writer_leaves_a_file_that_is_found(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name that writing gives its temporary file is the one that removing looks for."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", raising(KeyboardInterrupt()))
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process cleans nothing up
        with pytest.raises(KeyboardInterrupt):
            write_atomically(target, NEW)
    assert len(contents(target.parent)) == 2
    remove_partial(target)
    assert contents(target.parent) == {target.name: OLD}
