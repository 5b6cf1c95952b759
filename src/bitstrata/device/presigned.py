"""Fetching by signed addresses: a list that maps every path of a published model to one, for stores that are private.

The list is JSON, `{"files": {"latest.json": "https://...", ...}}`, in a file whose name ends in `.presigned.json`, on a
disk or on a web server.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from bitstrata.device.access import Secrets, refuse_offline
from bitstrata.device.addresses import check_base, check_path, check_signed
from bitstrata.device.http import Answer, HttpSource, WebSource
from bitstrata.device.pace import Patience
from bitstrata.errors import AccessDenied, BadArtifact, BadSource, MissingFile, NotPublished
from bitstrata.format.files import read_bounded
from bitstrata.limits import MAX_PRESIGNED_BYTES

SUFFIX = ".presigned.json"


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: dict[str, str]


class PresignedSource(WebSource):
    """A published model behind signed addresses. They are its secrets: no message shows one."""

    def __init__(self, place: str, *, list_secrets: Secrets | None = None, patience: Patience | None = None) -> None:
        on_the_web = "://" in place
        address = check_base(place) if on_the_web else str(Path(place).expanduser().absolute())
        super().__init__(address, Secrets(), patience)
        self._list_secrets = list_secrets or Secrets()
        self._on_the_web = on_the_web
        self._files: dict[str, str] | None = None

    def _locate(self, path: str) -> tuple[str, str]:
        refuse_offline(self.address)
        if self._files is None:
            self._files = self._read_list()
        signed = self._files.get(check_path(path))
        if signed is None:
            raise NotPublished(f"{path} is not among the signed addresses of {self.address}")
        return check_signed(signed, path), f"{path} of {self.address}"

    def _ask(self, path: str, conditions: dict[str, str]) -> Answer:
        had = self._files
        try:
            return super()._ask(path, conditions)
        except AccessDenied:
            if had is None:
                raise
            # Signatures may end before a download does; whoever wrote the list may have written a newer one by then.
            return super()._ask(path, conditions)

    def _denied(self, answer: Answer, first: str) -> AccessDenied:
        why = _expiry(first) or "it may have expired, or be signed for something else"
        self._files = None
        return AccessDenied(
            f"{answer.place}: the signed address is refused ({answer.response.status}); {why}. Ask its publisher for a "
            f"new list of signed addresses"
        )

    def _read_list(self) -> dict[str, str]:
        if self._on_the_web:
            base, _, name = self.address.rpartition("/")
            source = HttpSource(base, secrets=self._list_secrets, patience=self._patience)
            content = source.read(name, MAX_PRESIGNED_BYTES)
        else:
            path = Path(self.address)
            try:
                content = read_bounded(path.parent, path.name, MAX_PRESIGNED_BYTES)
            except MissingFile:
                raise NotPublished(f"{path} is not there") from None
            except PermissionError:
                raise AccessDenied(f"{path} may not be read by this user") from None
            except BadArtifact as error:
                raise BadSource(str(error)) from None
        try:
            return msgspec.json.decode(content, type=_Signed).files
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # What the decoder says could quote an address.
            raise BadSource(
                f'{self.address} is no list of signed addresses: {{"files": {{"latest.json": "https://..."}}}}'
            ) from None


def _expiry(url: str) -> str | None:
    """When a signature ended, where the address says so, as those of S3 do."""
    query = parse_qs(urlsplit(url).query)
    begin, seconds = query.get("X-Amz-Date", [""])[0], query.get("X-Amz-Expires", [""])[0]
    if not re.fullmatch(r"\d{8}T\d{6}Z", begin, re.ASCII) or not re.fullmatch(r"\d{1,7}", seconds, re.ASCII):
        return None
    try:
        end = datetime.strptime(begin, "%Y%m%dT%H%M%S%z") + timedelta(seconds=int(seconds))
    except ValueError:
        return None
    return f"it has expired at {end:%Y-%m-%d %H:%M} UTC" if end < datetime.now(timezone.utc) else None
