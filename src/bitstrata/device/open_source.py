"""From what people write to a source: a folder, a web address, a bucket, a model of the hub, a list of addresses."""

from __future__ import annotations

import os
import re

from bitstrata.device.access import secrets_from_environment
from bitstrata.device.folder import FolderSource
from bitstrata.device.http import HttpSource
from bitstrata.device.hub import hub_source
from bitstrata.device.pace import Patience
from bitstrata.device.presigned import SUFFIX, PresignedSource
from bitstrata.device.s3 import s3_source
from bitstrata.device.sources import Source
from bitstrata.errors import BadSource

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):/")


def is_remote(text: str | os.PathLike[str]) -> bool:
    """Whether this is an address, or a list of them, rather than a folder of this machine."""
    text = os.fspath(text)
    return _scheme(text) is not None or text.endswith(SUFFIX)


def open_source(text: str | os.PathLike[str], patience: Patience | None = None) -> Source:
    """The source that a path or address stands for. Nothing is asked yet: what cannot be reached shows at first use."""
    text = os.fspath(text)
    scheme = _scheme(text)
    if scheme in {"http", "https"}:
        if text.endswith(SUFFIX):
            return PresignedSource(text, list_secrets=secrets_from_environment(), patience=patience)
        return HttpSource(text, secrets=secrets_from_environment(), patience=patience)
    if scheme == "s3":
        return s3_source(text, patience)
    if scheme == "hf":
        return hub_source(text, patience)
    if scheme is not None:
        advice = (
            "give the path alone" if scheme == "file" else "there are http://, https://, s3:// and hf://, and paths"
        )
        raise BadSource(f"{scheme}:// is nothing that can be fetched from: {advice}")
    if not text or "\0" in text:
        raise BadSource("an empty source: give a folder, or an http://, https://, s3:// or hf:// address")
    return PresignedSource(text, patience=patience) if text.endswith(SUFFIX) else FolderSource(text)


def _scheme(text: str) -> str | None:
    """In small letters; one letter is a drive, not a scheme."""
    found = _SCHEME.match(text)
    return found["scheme"].lower() if found and len(found["scheme"]) > 1 else None
