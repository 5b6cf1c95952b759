"""Where things lie in a published model, whatever the store: a folder, an object store, a web server."""

from __future__ import annotations

from bitstrata.format.release import LATEST as LATEST  # noqa: PLC0414 (the one file that changes)


def blob(digest: str) -> str:
    """A stratum or view."""
    return f"blobs/sha256/{digest}"


def manifest(digest: str) -> str:
    return f"manifests/{digest}.json"


def release(version: int) -> str:
    """What `latest.json` was when this version was published; never changes."""
    return f"releases/{version}.json"


def key_set(number: int) -> str:
    return f"keys/{number}.json"
