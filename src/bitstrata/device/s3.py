"""Fetching from S3 and what is compatible with it: `s3://bucket/prefix`, anonymously or with credentials."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import quote

from bitstrata.device.access import Secrets, refuse_offline
from bitstrata.device.addresses import check_path
from bitstrata.device.bodies import collect, strong_validator
from bitstrata.device.http import HttpSource
from bitstrata.device.pace import Pace, Patience
from bitstrata.device.sources import Body, Source
from bitstrata.errors import (
    AccessDenied,
    BadSource,
    FetchFailed,
    Interrupted,
    MissingExtra,
    NotPublished,
    SourceMisbehaves,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import S3Store

_ADDRESS = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/(?P<prefix>[^\x00-\x1f\x7f?#\\]*))?")

#: Any of these means that requests are to be signed.
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def s3_source(text: str, patience: Patience | None = None) -> Source:
    """The source of an s3 address; where it is and who asks is told by the environment, as for other programs."""
    found = _ADDRESS.fullmatch(text)
    prefix = (found["prefix"] or "").rstrip("/") if found else ""
    if not found or any(part in {"", ".", ".."} for part in prefix.split("/") if prefix):
        raise BadSource(f"{text[:200]!a} is not of the form s3://bucket/prefix")
    bucket = found["bucket"]
    address = f"s3://{bucket}/{prefix}".rstrip("/")
    unsigned = os.environ.get("AWS_SKIP_SIGNATURE", "").strip().lower() in {"1", "true", "yes", "on"}
    if not unsigned and any(os.environ.get(name, "").strip() for name in _CREDENTIALS):
        return S3Source(bucket, prefix, address, patience)
    advice = "the bucket is private: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use signed addresses"
    base = "/".join(filter(None, [_endpoint(bucket), quote(prefix)]))
    return HttpSource(base, address=address, secrets=Secrets(advice=advice), patience=patience)


def _endpoint(bucket: str) -> str:
    """Where a bucket is on the web."""
    if custom := _custom_endpoint():
        return f"{custom}/{bucket}"
    region = (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "").strip()
    if region and not re.fullmatch(r"[a-z0-9-]{1,40}", region):
        raise BadSource(f"AWS_REGION is {region[:50]!a}, which is no region")
    host = f"s3.{region}.amazonaws.com" if region else "s3.amazonaws.com"
    # The certificate of the store is for one name before its own, not for several.
    return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"


def _custom_endpoint() -> str:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    return endpoint.strip().rstrip("/")


class S3Source:
    """A published model in a bucket, with requests signed by the credentials of the environment."""

    def __init__(self, bucket: str, prefix: str, address: str, patience: Patience | None = None) -> None:
        self.address = address
        self._patience = patience or Patience()
        self._store = self._connect(bucket, prefix)

    def __repr__(self) -> str:
        return f"S3Source({self.address!r})"

    def read(self, path: str, limit: int) -> bytes:
        with self.open(path) as body:
            return collect(body, limit, f"{path} of {self.address}")

    @contextmanager
    def open(self, path: str, start: int = 0, stop: int | None = None, validator: str | None = None) -> Iterator[Body]:
        import obstore
        from obstore.exceptions import BaseError, PreconditionError

        refuse_offline(self.address)
        check_path(path)
        place = f"{self.address}/{path}"
        options: GetOptions = {}
        if start or stop is not None:
            options["range"] = {"offset": start} if stop is None else (start, stop)
            if validator is not None:
                options["if_match"] = validator
        try:
            try:
                result = obstore.get(self._store, path, options=options)
            except PreconditionError:
                start, stop = 0, None
                result = obstore.get(self._store, path)
            first, last = result.range
            size, etag = result.meta["size"], result.meta["e_tag"]
        except (BaseError, OSError, ValueError) as error:
            raise _explain(error, place) from None
        if first != start or (stop is not None and last > stop):
            raise SourceMisbehaves(f"{place}: another range was sent than was asked for ({first}-{last})")

        def chunks() -> Iterator[bytes]:
            pace = Pace(self._patience, place)
            # As they come: what waits to become a larger chunk is lost when the connection breaks.
            arrived, stream = 0, iter(result.stream(min_chunk_size=1))
            while True:
                begin = time.monotonic()
                try:
                    chunk = next(stream, None)
                except (BaseError, OSError, ValueError) as error:
                    raise _explain(error, place) from None
                waited = time.monotonic() - begin
                if chunk is None:
                    break
                arrived += len(chunk)
                yield bytes(chunk)
                pace.count(waited, len(chunk))
            if arrived < last - first:
                raise Interrupted(f"{place}: the connection ended after {arrived} of {last - first} bytes")

        yield Body(first, size, strong_validator(etag), chunks())

    def _connect(self, bucket: str, prefix: str) -> S3Store:
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError:
            raise MissingExtra(
                f"fetching from {self.address} with credentials needs obstore: pip install 'bitstrata[s3]'. A public "
                f"bucket needs none: unset AWS_ACCESS_KEY_ID, or set AWS_SKIP_SIGNATURE=1"
            ) from None
        try:
            # Tries are counted and spaced in one place, which is not here; and no body is to be cut off by the clock.
            return S3Store(
                bucket,
                prefix=prefix or None,
                client_options={
                    "allow_http": _custom_endpoint().startswith("http://"),
                    "connect_timeout": timedelta(seconds=self._patience.connect),
                    "read_timeout": timedelta(seconds=self._patience.stall),
                    "timeout": timedelta(days=2),
                },
                retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=self._patience.stall)},
            )
        except (BaseError, ValueError):
            raise BadSource(f"{self.address}: the AWS_ variables of the environment contradict each other") from None


def _explain(error: Exception, place: str) -> FetchFailed:
    """Our error for one of obstore's. Its text is not shown: stores repeat what they were sent."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    if isinstance(error, FileNotFoundError):
        return NotPublished(f"{place} is not there")
    if isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
        return AccessDenied(f"{place}: access is denied; the AWS credentials that are set are wrong or not enough")
    status = re.search(r"status code:? (\d{3})|\b(\d{3}) [A-Z][a-z]+", str(error)[:2000])
    code = (status[1] or status[2]) if status else None
    if code == "416":
        return SourceMisbehaves(f"{place}: the file there is shorter than was published (416)")
    if code and code.startswith("4") and code not in {"408", "425", "429"}:
        return SourceMisbehaves(f"{place}: the store answered {code}")
    return Interrupted(f"{place}: the store " + (f"answered {code}" if code else "did not answer"))
