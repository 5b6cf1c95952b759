"""What all sources do with what they send."""

from __future__ import annotations

import re

from bitstrata.device.sources import Body
from bitstrata.errors import SourceMisbehaves
from bitstrata.limits import MAX_VALIDATOR

_STRONG_ETAG = re.compile(r'"[\x21\x23-\x7e]*"')


def strong_validator(etag: str | None) -> str | None:
    """An ETag that stands for exact bytes; a weak one (`W/...`) stands for what a reader may take for the same."""
    etag = (etag or "").strip()
    return etag if len(etag) <= MAX_VALIDATOR and _STRONG_ETAG.fullmatch(etag) else None


def collect(body: Body, limit: int, place: str) -> bytes:
    """All bytes of a small file."""
    if body.size is not None and body.size > limit:
        raise SourceMisbehaves(f"{place} has {body.size} bytes, more than the {limit} it may have")
    content = bytearray()
    for chunk in body.chunks:
        content += chunk
        if len(content) > limit:
            raise SourceMisbehaves(f"{place} has more than the {limit} bytes it may have")
    return bytes(content)
