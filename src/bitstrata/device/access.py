"""What the environment says about access: tokens and headers for private sources, and offline mode."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from bitstrata.errors import AccessDenied, SourceUnreachable
from bitstrata.limits import MAX_HEADERS_FILE_BYTES

TOKEN = "BITSTRATA_TOKEN"  # noqa: S105 (the name of a variable)
HEADERS_FILE = "BITSTRATA_HEADERS_FILE"
OFFLINE = "BITSTRATA_OFFLINE"

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e\t]*[\x21-\x7e])?")

#: Headers that make a request what it is; setting them would break fetching, or the checks of what comes back.
_OURS = {
    "accept-encoding",
    "connection",
    "content-length",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}


@dataclass(frozen=True)
class Secrets:
    """Headers that only the source's own host may see; nothing prints them."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    advice: str = f"set {TOKEN}, or name a file of headers in {HEADERS_FILE}"
    """What to do where access is denied."""


def secrets_from_environment() -> Secrets:
    """For http and https sources: a bearer token, and whatever else a private store asks for."""
    headers = bearer(TOKEN)
    if place := os.environ.get(HEADERS_FILE, ""):
        headers.update(_read_headers(place))
    return Secrets(headers)


def bearer(variable: str) -> dict[str, str]:
    """The header of the token in a variable of the environment; none where it is not set."""
    token = os.environ.get(variable, "").strip()
    if not token:
        return {}
    if not re.fullmatch(r"[\x21-\x7e]{1,8192}", token):
        raise AccessDenied(f"{variable} has spaces or other characters that no token has: set it anew")
    return {"Authorization": f"Bearer {token}"}


def refuse_offline(address: str) -> None:
    if os.environ.get(OFFLINE, "").strip().lower() not in {"", "0", "false", "no", "off"}:
        raise SourceUnreachable(f"{address} is not asked: offline mode is on. Unset {OFFLINE} to fetch")


def _read_headers(place: str) -> dict[str, str]:
    """Lines of `Name: value`; empty ones and those that begin with # say nothing. Errors never show a value."""
    try:
        with open(place, "rb") as file:
            content = file.read(MAX_HEADERS_FILE_BYTES + 1)
        text = content.decode("ascii")
    except OSError as error:
        raise AccessDenied(f"{HEADERS_FILE} names {place}, which cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise AccessDenied(f"{place} ({HEADERS_FILE}) has characters that headers do not have") from None
    if len(content) > MAX_HEADERS_FILE_BYTES:
        raise AccessDenied(f"{place} ({HEADERS_FILE}) has more than {MAX_HEADERS_FILE_BYTES} bytes")
    headers: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, value = line.partition(":")
        name, value = name.strip(), value.strip()
        if not separator or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise AccessDenied(f"line {number} of {place} ({HEADERS_FILE}) is not of the form `Name: value`")
        if name.lower() in _OURS:
            raise AccessDenied(f"line {number} of {place} ({HEADERS_FILE}) sets {name}, which is not for it to set")
        headers[name] = value
    return headers
