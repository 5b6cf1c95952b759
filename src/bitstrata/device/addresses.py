"""Web addresses: what may be in one, how a published path is joined to it, and how it is shown without secrets."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urljoin

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from bitstrata.errors import BadSource, SourceMisbehaves
from bitstrata.limits import MAX_ADDRESS

#: What published paths are made of; nothing in them needs quoting, on the web or on a disk.
_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")

#: Parsers disagree about what these mean in an address.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f\\]")

_DEFAULT_PORTS = {"http": 80, "https": 443}

Origin = tuple[str, str, int]


def check_path(path: str) -> str:
    """A path inside a published model, as it was given; none leads out of it."""
    if len(path) > 512 or not _PATH.fullmatch(path):
        raise BadSource(f"{path[:100]!a} is no path of a published model")
    return path


def check_base(text: str) -> str:
    """An address that paths can be joined to: no query, fragment or user info, whatever may be secret in them."""
    url = _parse(text)
    if url is None or url.scheme not in _DEFAULT_PORTS or not url.host:
        raise BadSource(f"{_before_secrets(text)!a} is no http or https address")
    if url.auth is not None:
        raise BadSource(
            f"the address at {url.host} has a user name or password in it, where logs and shells would show it: take "
            f"it out, and set BITSTRATA_TOKEN, or name a file of headers in BITSTRATA_HEADERS_FILE"
        )
    if url.query is not None or url.fragment is not None:
        raise BadSource(
            f"{shown(text)} goes on with ? or #, so that nothing can be joined to it; for signed addresses give a file "
            f"that ends in .presigned.json and lists them"
        )
    return text.rstrip("/")


def check_signed(text: str, path: str) -> str:
    """An address with a signature in its query: used as it is, and only where nobody can read it on the way."""
    url = _parse(text)
    if url is None or url.scheme not in _DEFAULT_PORTS or not url.host or url.auth is not None:
        raise BadSource(f"the signed address of {path} is no http or https address")
    if url.scheme != "https" and not is_local(text):
        raise BadSource(f"the signed address of {path} is http, where everybody on the way reads its signature")
    return text


def redirected(origin_url: str, location: str | None, place: str) -> str:
    """Where a redirect leads, if it may: to http or https, never from https to http."""
    if not location:
        raise SourceMisbehaves(f"{place}: a redirect to nowhere")
    target = urljoin(origin_url, location)
    url = None if _FORBIDDEN.search(location) else _parse(target)
    if url is None or url.scheme not in _DEFAULT_PORTS or not url.host or url.auth is not None:
        raise SourceMisbehaves(f"{place}: a redirect to something that is no plain http or https address")
    if url.scheme == "http" and parse_url(origin_url).scheme == "https":
        raise SourceMisbehaves(f"{place}: a redirect from https to http, at {url.host}; it is not followed")
    return target


def join(base: str, path: str) -> str:
    return f"{base}/{check_path(path)}"


def origin(text: str) -> Origin:
    """Scheme, host and port: whom a request goes to."""
    url = parse_url(text)
    scheme = url.scheme or ""
    return scheme, url.host or "", url.port or _DEFAULT_PORTS.get(scheme, 0)


def is_local(text: str) -> bool:
    """Whether an address is of this very machine."""
    host = (parse_url(text).host or "").strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def shown(text: str) -> str:
    """An address for messages: without user info, query and fragment, in plain characters."""
    url = _parse(text)
    if url is None:
        return _before_secrets(text)
    port = f":{url.port}" if url.port else ""
    return ascii(f"{url.scheme}://{url.host}{port}{url.path or ''}"[:300])[1:-1]


def host_of(text: str) -> str:
    """For messages about an address whose path may be secret too."""
    return parse_url(text).host or "?"


def _parse(text: str) -> Url | None:
    if len(text) > MAX_ADDRESS or _FORBIDDEN.search(text):
        return None
    try:
        return parse_url(text)
    except LocationParseError:
        return None


def _before_secrets(text: str) -> str:
    """What can be shown of a text that is no address: all before anything that could be a password or a signature."""
    scheme, separator, rest = text.partition("://")
    rest = re.split(r"[?#]", rest)[0].rpartition("@")[2]
    return f"{scheme}{separator}{rest}"[:100]
