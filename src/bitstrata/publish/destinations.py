"""Where a model is published to: a folder, or an object store. Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bitstrata.atomic import write_atomically
from bitstrata.errors import CannotPublish, MissingExtra
from bitstrata.format import MANIFEST, published
from bitstrata.limits import MAX_RELEASE_BYTES

if TYPE_CHECKING:
    from obstore.store import ObjectStore

#: Addresses of object stores.
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")

#: For how long caches may keep a file: for good, or not without asking.
IMMUTABLE, ASK = "public, max-age=31536000, immutable", "no-cache"

README = "README.md"


class Destination(Protocol):
    """A place that takes the files of one published model."""

    address: str
    """For messages and results: without secrets."""
    public: bool
    """Whether others can use that address; the path of a folder says nothing to them."""

    def size(self, path: str) -> int | None:
        """In bytes; None where there is no such file."""
        ...

    def read(self, path: str, limit: int = MAX_RELEASE_BYTES) -> bytes | None:
        """A small file; None where there is none."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """Puts a file there, or another in its place, at one instant."""
        ...

    def write_new(self, path: str, content: bytes) -> bool:
        """Puts a file there that must never change; False, and nothing happens, where there is one."""
        ...


def cache_control(path: str) -> str:
    """What to tell caches about a published file."""
    folder, _, _ = path.partition("/")
    return IMMUTABLE if folder in {"blobs", "manifests", "releases", "keys"} else ASK


def content_type(path: str) -> str:
    if path.endswith(".json"):
        return "application/json"
    return "text/markdown; charset=utf-8" if path.endswith(".md") else "application/octet-stream"


def open_destination(text: str) -> Destination:
    """A folder, or the object store that an address such as `s3://bucket/name` is of."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return FolderDestination(Path(text))
    if scheme in SCHEMES:
        return _object_store(text)
    if scheme == "hf":
        name = rest.partition("@")[0]
        raise CannotPublish(
            f"push does not upload to hubs: push to a folder with --hub, then `hf upload {ascii(name)[1:-1]} FOLDER`"
        )
    known = ", ".join(f"{one}://" for one in SCHEMES)
    raise CannotPublish(f"cannot publish to {ascii(scheme)[1:-1]}://: give a folder, or an address with {known}")


class FolderDestination:
    """A folder, for a web server, a mounted disk, or a hub. One publisher at a time."""

    public = False

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.address = str(folder)
        if (self.folder / MANIFEST).exists():
            raise CannotPublish(f"{folder} is an artifact itself: publish into a folder of its own")
        if self.folder.exists() and not self.folder.is_dir():
            raise CannotPublish(f"{folder} is a file: publish into a folder")

    def size(self, path: str) -> int | None:
        target = self.folder / path
        return target.stat().st_size if target.is_file() else None

    def read(self, path: str, limit: int = MAX_RELEASE_BYTES) -> bytes | None:
        try:
            with (self.folder / path).open("rb") as file:
                content = file.read(limit + 1)
        except FileNotFoundError:
            return None
        return _bounded(content, limit, f"{self.address}/{path}")

    def write(self, path: str, content: bytes) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)

    def write_new(self, path: str, content: bytes) -> bool:
        if (self.folder / path).exists():
            return False
        self.write(path, content)
        return True


class ObjectDestination:
    """A bucket, or a prefix of one, through obstore; credentials come from the environment, as obstore reads them."""

    public = True

    def __init__(self, store: ObjectStore, address: str) -> None:
        self.address = address.rstrip("/")
        self._store = store

    def size(self, path: str) -> int | None:
        import obstore

        try:
            return obstore.head(self._store, path)["size"]
        except FileNotFoundError:
            return None
        except obstore.exceptions.BaseError as error:
            raise self._failed("look for", path, error) from None

    def read(self, path: str, limit: int = MAX_RELEASE_BYTES) -> bytes | None:
        import obstore

        try:
            found = obstore.get(self._store, path)
            if found.meta["size"] > limit:
                return _bounded(b" " * (limit + 1), limit, f"{self.address}/{path}")
            return bytes(found.bytes())
        except FileNotFoundError:
            return None
        except obstore.exceptions.BaseError as error:
            raise self._failed("read", path, error) from None

    def write(self, path: str, content: bytes) -> None:
        import obstore

        try:
            obstore.put(self._store, path, content, attributes=self._attributes(path))
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise self._failed("write", path, error) from None

    def write_new(self, path: str, content: bytes) -> bool:
        import obstore

        if self.size(path) is not None:
            return False
        try:
            # Stores do not take large files in parts and on a condition; large ones are named by their content.
            small = len(content) <= MAX_RELEASE_BYTES
            attributes = self._attributes(path)
            if small:
                obstore.put(self._store, path, content, mode="create", use_multipart=False, attributes=attributes)
            else:
                obstore.put(self._store, path, content, attributes=attributes)
        except obstore.exceptions.AlreadyExistsError:
            return False
        except obstore.exceptions.NotSupportedError:
            self.write(path, content)
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            raise self._failed("write", path, error) from None
        return True

    def _attributes(self, path: str) -> Any:
        return {"Content-Type": content_type(path), "Cache-Control": cache_control(path)}

    def _failed(self, what: str, path: str, error: Exception) -> CannotPublish:
        """Only the kind of error is told: its text may hold signed addresses or headers."""
        import obstore

        kinds = {
            FileNotFoundError: "there is no such bucket",
            obstore.exceptions.PermissionDeniedError: "the credentials do not allow it",
            obstore.exceptions.UnauthenticatedError: "there are no credentials, or they are wrong",
        }
        reason = kinds.get(type(error), f"{type(error).__name__} after several tries")
        return CannotPublish(f"cannot {what} {self.address}/{path}: {reason}. What was written stays; push again")


def _object_store(address: str) -> ObjectDestination:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise MissingExtra(
            "publishing to an object store needs obstore: pip install 'bitstrata[publish]'; or push to a folder and "
            "copy that, latest.json last"
        ) from None
    if "@" in address or "?" in address:
        raise CannotPublish("credentials and options do not belong into an address: use the environment (AWS_...)")
    try:
        return ObjectDestination(from_url(address), address)
    except (BaseError, ValueError) as error:
        raise CannotPublish(f"{address} is no address of an object store ({type(error).__name__})") from None


def _bounded(content: bytes, limit: int, place: str) -> bytes:
    if len(content) > limit:
        raise CannotPublish(f"{place} has more than {limit} bytes: it is no {published.LATEST} of ours")
    return content
