"""What a change of the store tells while it goes on: for progress bars, logs and callbacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """The base of all events."""

    kind: ClassVar[str] = "event"

    def to_dict(self) -> dict[str, Any]:
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True)
class Waiting(Event):
    """Another process is changing the store."""

    kind: ClassVar[str] = "waiting"


@dataclass(frozen=True)
class Resolved(Event):
    """Which release it is, and what is to be fetched for the view."""

    kind: ClassVar[str] = "resolved"
    name: str
    version: int
    signed: bool
    view: str
    why: str
    """Where the view was chosen for the user: the reason."""
    bytes: int
    """Still to be fetched."""


@dataclass(frozen=True)
class Fetching(Event):
    """Progress; many of them."""

    kind: ClassVar[str] = "fetching"
    what: str
    bytes: int
    """Fetched so far, of all that this change needs."""
    total: int


@dataclass(frozen=True)
class Switched(Event):
    """The record names the new view now, on the disk."""

    kind: ClassVar[str] = "switched"
    name: str
    version: int
    view: str


@dataclass(frozen=True)
class Ready(Event):
    """A running model computes with the view from the next call on."""

    kind: ClassVar[str] = "ready"
    view: str


@dataclass(frozen=True)
class Failed(Event):
    """An upgrade in the background ended here; the model runs on with the view that it has."""

    kind: ClassVar[str] = "failed"
    error: str
    message: str


Listener = Callable[[Event], None]


def nobody(event: Event) -> None:
    """Listens to nothing."""
