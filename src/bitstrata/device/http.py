"""Fetching from a web server: any that serves files; best one with Range and strong ETags."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse

from bitstrata import __version__
from bitstrata.device.access import TOKEN, Secrets, refuse_offline
from bitstrata.device.addresses import check_base, host_of, is_local, join, origin, redirected, shown
from bitstrata.device.bodies import collect, strong_validator
from bitstrata.device.connections import Connections, explain, proxy_of
from bitstrata.device.pace import Pace, Patience, limited
from bitstrata.device.sources import Body
from bitstrata.errors import AccessDenied, FetchFailed, Interrupted, NotPublished, SourceMisbehaves, SourceUnreachable
from bitstrata.limits import MAX_FILE_BYTES, MAX_REDIRECTS

#: Bytes that are asked of the system at once.
_CHUNK = 2**18

_REDIRECTS = {301, 302, 303, 307, 308}
_WORTH_ANOTHER_TRY = {408, 425, 429}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@dataclass(frozen=True)
class Answer:
    """What a server said, and to whom."""

    response: BaseHTTPResponse
    url: str
    place: str
    had_secrets: bool


class WebSource(ABC):
    """What all sources have in common that are asked by http or https."""

    def __init__(self, address: str, secrets: Secrets, patience: Patience | None) -> None:
        self.address = address
        self._secrets = secrets
        self._patience = patience or Patience()
        self._connections = Connections(self._patience)

    @abstractmethod
    def _locate(self, path: str) -> tuple[str, str]:
        """The address of a file, and what messages call it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address!r})"

    def read(self, path: str, limit: int) -> bytes:
        with self.open(path) as body:
            return collect(body, limit, f"{path} of {self.address}")

    @contextmanager
    def open(self, path: str, start: int = 0, stop: int | None = None, validator: str | None = None) -> Iterator[Body]:
        refuse_offline(self.address)
        conditions: dict[str, str] = {}
        if start or stop is not None:
            conditions["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
            if validator is not None:
                conditions["If-Range"] = validator
        answer = self._ask(path, conditions)
        try:
            body = self._body(answer, start, stop, "Range" in conditions)
            if body.start and validator and body.validator and body.validator != validator:
                # A server that ignores If-Range: what it sends is the rest of another file.
                answer.response.close()
                answer = self._ask(path, {})
                body = self._body(answer, 0, None, False)
            yield body
        finally:
            answer.response.close()

    def _ask(self, path: str, conditions: dict[str, str]) -> Answer:
        url, place = self._locate(path)
        return self._follow(url, place, conditions)

    def _denied(self, answer: Answer, first: str) -> AccessDenied:
        """The error for 401 and 403; `first` is the address before any redirect."""
        advice = self._secrets.advice
        if self._secrets.headers and not answer.had_secrets:
            if origin(answer.url) != origin(first):
                advice = f"it redirects to {host_of(answer.url)}, which is not shown the token or headers that are set"
            else:
                advice = "the token or headers that are set were not sent, because the address is not https"
        elif answer.had_secrets:
            advice = f"the token or headers that are set ({TOKEN} or others) are wrong or have expired"
        return AccessDenied(f"{answer.place}: access is denied ({answer.response.status}); {advice}")

    def _follow(self, url: str, name: str, conditions: dict[str, str]) -> Answer:
        """The answer after all redirects, if it is one with a body that was asked for."""
        first, secret = url, bool(self._secrets.headers)
        for _ in range(MAX_REDIRECTS + 1):
            place = name if url == first else f"{name} (redirected to {host_of(url)})"
            # Through a proxy nothing is local.
            private = origin(url)[0] == "https" or (is_local(url) and proxy_of(url) is None)
            headers = {"User-Agent": f"bitstrata/{__version__}", "Accept": "*/*", "Accept-Encoding": "identity"}
            if secret and private:
                headers.update(self._secrets.headers)
            try:
                response = self._connections.get(url, headers | conditions)
            except (HTTPError, OSError) as error:
                raise error if isinstance(error, FetchFailed) else explain(error, place, self._patience) from None
            answer = Answer(response, url, place, secret and private)
            if response.status not in _REDIRECTS:
                try:
                    self._refuse(answer, first)
                except FetchFailed:
                    response.close()
                    raise
                return answer
            response.close()
            target = redirected(url, response.headers.get("Location"), place)
            # Once a request has left the source's own host, it never again carries what is secret.
            secret = secret and origin(target) == origin(url)
            url = target
        raise SourceMisbehaves(f"{name}: more than {MAX_REDIRECTS} redirects")

    def _refuse(self, answer: Answer, first: str) -> None:
        """Raises what an answer without the file means."""
        status, place = answer.response.status, answer.place
        if status in {200, 206}:
            encoding = answer.response.headers.get("Content-Encoding", "identity").strip().lower()
            if encoding not in {"", "identity"}:
                raise SourceMisbehaves(
                    f"{place}: the body is encoded ({encoding[:20]!a}), though it was asked for as it is: switch "
                    f"compression of these files off at the server"
                )
        elif status in {401, 403}:
            raise self._denied(answer, first)
        elif status in {404, 410}:
            raise NotPublished(f"{place} is not there ({status})")
        elif status == 407:
            raise SourceUnreachable(f"{place}: the proxy asks for a user name and password (407)")
        elif status == 416:
            raise SourceMisbehaves(f"{place}: the file there is shorter than was published (416)")
        elif status in _WORTH_ANOTHER_TRY or 500 <= status < 600:
            wait = _retry_after(answer.response.headers.get("Retry-After"))
            raise Interrupted(f"{place}: the server answered {status}", retry_after=wait)
        else:
            raise SourceMisbehaves(f"{place}: the server answered {status}")

    def _body(self, answer: Answer, start: int, stop: int | None, partial: bool) -> Body:
        """What an answer brings, after its headers were found to agree with what was asked and with each other."""
        response, place = answer.response, answer.place
        length = None if getattr(response, "chunked", False) else _length(response, place)
        validator = strong_validator(response.headers.get("ETag"))
        if response.status == 200:
            return Body(0, length, validator, self._chunks(answer, length, from_the_start=True))
        found = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
        if not partial or not found:
            raise SourceMisbehaves(f"{place}: part of the file, without the range that it is (206)")
        first, last = int(found[1]), int(found[2])
        size = None if found[3] == "*" else int(found[3])
        if first != start or last < first or (stop is not None and last >= stop) or (size is not None and last >= size):
            raise SourceMisbehaves(f"{place}: another range was sent than was asked for ({found[0]})")
        if length is not None and length != last - first + 1:
            raise SourceMisbehaves(f"{place}: {length} bytes are announced for the range {found[0]}")
        return Body(start, size, validator, self._chunks(answer, last - first + 1, from_the_start=start == 0))

    def _chunks(self, answer: Answer, length: int | None, *, from_the_start: bool) -> Iterator[bytes]:
        """The bytes as they come, so that none is lost when the connection breaks."""
        response, place = answer.response, answer.place
        pace = Pace(self._patience, place)
        arrived = 0
        while True:
            begin = time.monotonic()
            try:
                # Only between chunks can a call read on and on without bringing a byte.
                chunked = getattr(response, "chunked", False)
                with limited(self._patience.stall, response.shutdown) if chunked else nullcontext():
                    chunk = response.read1(_CHUNK)
            except (HTTPError, OSError) as error:
                raise explain(error, place, self._patience) from None
            waited = time.monotonic() - begin
            if not chunk:
                break
            if not arrived and from_the_start and _is_page(chunk):
                raise SourceMisbehaves(
                    f"{place}: a web page came instead of the file. The address may need a login, or may not be that "
                    f"of a published model"
                )
            arrived += len(chunk)
            if length is not None and arrived > length:
                raise SourceMisbehaves(f"{place}: more than the {length} bytes came that were announced")
            yield chunk
            pace.count(waited, len(chunk))
        if length is not None and arrived < length:
            raise Interrupted(f"{place}: the connection ended after {arrived} of {length} bytes")


class HttpSource(WebSource):
    """A published model under an http or https address."""

    def __init__(
        self, base: str, *, address: str | None = None, secrets: Secrets | None = None, patience: Patience | None = None
    ) -> None:
        self._base = check_base(base)
        super().__init__(address or self._base, secrets or Secrets(), patience)

    def _locate(self, path: str) -> tuple[str, str]:
        url = join(self._base, path)
        return url, shown(url)


def _length(response: BaseHTTPResponse, place: str) -> int | None:
    text = response.headers.get("Content-Length")
    if text is None:
        return None
    parts = {part.strip() for part in text.split(",")}
    (part, *others) = parts
    if others or not re.fullmatch(r"\d{1,18}", part, re.ASCII) or int(part) > MAX_FILE_BYTES:
        raise SourceMisbehaves(f"{place}: a Content-Length that no file has")
    return int(part)


def _retry_after(text: str | None) -> float | None:
    """Seconds, or the time of day at which to come again."""
    if text is None:
        return None
    text = text.strip()
    if re.fullmatch(r"\d{1,9}", text, re.ASCII):
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return max(0.0, (when - datetime.now(timezone.utc)).total_seconds())


def _is_page(beginning: bytes) -> bool:
    text = beginning[:256].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return text.startswith((b"<!doctype html", b"<html"))
