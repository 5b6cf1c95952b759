"""What a device knows about a model that it holds: one small file per model, replaced as a whole."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from bitstrata.atomic import sync_directory, write_atomically
from bitstrata.device.home import Home
from bitstrata.errors import BitstrataError, MissingFile, StoreDamaged, UnknownModel
from bitstrata.format.files import read_bounded
from bitstrata.format.release import KeySet, Release, decode_envelope, decode_payload
from bitstrata.graph.weights import NAME_PATTERN, Name
from bitstrata.limits import MAX_ADDRESS, MAX_RELEASE_BYTES, MAX_VIEWS

_SUFFIX = ".json"
_LIMIT = 4 * MAX_RELEASE_BYTES


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which release of a model is held, from where, at which views. To replace it is the switch."""

    record_version: Literal[1] = 1
    name: Name
    source: Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS)]
    envelope: bytes
    """The release as it was fetched, with its signatures."""
    trusted: KeySet | None = None
    """The keys that are pinned for this model."""
    view: Name
    """What runs where nothing else is said."""
    views: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=MAX_VIEWS)]
    """The views that are held in full."""

    @property
    def release(self) -> Release:
        place = f"the record of {self.name}"
        return decode_payload(decode_envelope(self.envelope, place), Release, place)


def is_name(text: str) -> bool:
    """Whether a model can be called so on a device: the name becomes that of a file."""
    return re.fullmatch(NAME_PATTERN, text) is not None


class Records:
    """The records of a store."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def names(self) -> list[str]:
        try:
            found = [path.name for path in self.home.models.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(
            name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX) and not name.startswith(".")
        )

    def get(self, name: str) -> Record | None:
        """The record of a model, or None where there is none."""
        if not is_name(name):
            return None
        file = name + _SUFFIX
        try:
            content = read_bounded(self.home.models, file, _LIMIT)
        except MissingFile:
            return None
        except BitstrataError as error:
            raise StoreDamaged(f"the record of {name}: {error}") from None
        try:
            record = msgspec.json.decode(content, type=Record)
            release = record.release
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BitstrataError) as error:
            raise StoreDamaged(
                f"{self.home.models / file} is damaged: {str(error)[:200]!a}. Remove it and pull {name} again; what "
                f"was fetched is kept"
            ) from None
        if record.name != name or release.name == "":
            raise StoreDamaged(f"{self.home.models / file} is the record of {record.name!r}")
        return record

    def of(self, name: str) -> Record:
        record = self.get(name)
        if record is None:
            held = ", ".join(self.names()) or "none"
            raise UnknownModel(f"this device holds no model {name!r}; it holds: {held}")
        return record

    def put(self, record: Record) -> None:
        """The switch: before it the old record holds, after it the new one, on the disk."""
        write_atomically(self.home.models / (record.name + _SUFFIX), msgspec.json.encode(record, order="sorted"))

    def remove(self, name: str) -> None:
        """On the disk too, before anything that it needed may go."""
        (self.home.models / (name + _SUFFIX)).unlink(missing_ok=True)
        sync_directory(self.home.models)
