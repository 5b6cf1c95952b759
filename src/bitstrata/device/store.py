"""The store of a device: pull, upgrade, downgrade, list, verify, gc.

Every change has the same shape: fetch into `partial/`, verify, move to `blobs/`, and when all that a view needs is
there, replace the model's record. A process that dies anywhere leaves the old record or the new one; what it had
fetched is found again by the next try.
"""

from __future__ import annotations

from collections.abc import Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from bitstrata.device.blobs import Blobs
from bitstrata.device.choose import Limits, choose
from bitstrata.device.download import download_small
from bitstrata.device.events import Listener, Resolved, Switched, Waiting, nobody
from bitstrata.device.fetch import fetch, fetch_manifest
from bitstrata.device.held import HeldArtifact
from bitstrata.device.home import PATIENCE, Home
from bitstrata.device.needs import Need, covered_views, mean_bits, needs_of
from bitstrata.device.open_source import open_source
from bitstrata.device.records import Record, Records, is_name
from bitstrata.device.sources import Source
from bitstrata.errors import BadOption, BitstrataError, MissingFile, NotPublished, WrongModel, WrongSignature
from bitstrata.format import published
from bitstrata.format.manifest import Manifest, check_manifest, decode_manifest
from bitstrata.format.release import KeySet, Release, decode_envelope, decode_payload
from bitstrata.limits import MAX_RELEASE_BYTES


@dataclass(frozen=True)
class Verified:
    """What `Store.verify` found."""

    name: str
    files: int
    bytes: int
    damaged: tuple[str, ...]
    """What is missing or was wrong; wrong files are gone, so that a pull fetches them again."""


@dataclass(frozen=True)
class Freed:
    files: int
    bytes: int


class Store:
    """The models of this device. Changes of several processes wait for each other; reading waits for nobody."""

    def __init__(self, home: Home | str | Path | None = None, *, patience: float = PATIENCE) -> None:
        self.home = home if isinstance(home, Home) else Home(home)
        self.blobs = Blobs(self.home)
        self.records = Records(self.home)
        self.patience = patience

    def pull(
        self,
        source: str,
        view: str | None = None,
        *,
        name: str | None = None,
        version: int | None = None,
        trust: bytes | None = None,
        limits: Limits | None = None,
        listen: Listener = nobody,
    ) -> Record:
        """Fetches the newest release of a source, or a given version, at a view, and makes it the one that is held.

        source      a path or address, or the name of a model that is held: then from where it came
        view        by default the one that is held, or the base
        name        what the model is called on this device; by default as its publisher calls it
        trust       a public key: from now on only what it has signed, or a key that it handed over to
        limits      chooses the best view that stays within them
        """
        if view is not None and limits is not None:
            raise BadOption("give a view, or limits by which to choose one, not both")
        with self._changing(listen):
            if (known := self.records.get(source)) is not None:
                source, name = known.source, known.name
            opened = open_source(source)
            record, release = self._offered(opened, name, version, trust)
            manifest = fetch_manifest(opened, release, self.blobs)
            why = ""
            if limits is not None:
                view, why = choose(manifest, limits)
            if view is None:
                names = [one.name for one in manifest.views]
                view = record.view if record.view in names else base_view(manifest)
            # Of the release that is held, also what was lost of its other views.
            return self._switch(opened, replace(record, view=view), manifest, why, listen, {*record.views})

    def upgrade(self, name: str, view: str, *, listen: Listener = nobody) -> Record:
        """Fetches what a view with more bits needs, of the release that is held, and makes it the default."""
        with self._changing(listen):
            record, manifest = self._held(name)
            if mean_bits(manifest, view) < mean_bits(manifest, record.view):
                raise BadOption(f"{name} runs at {record.view}; `bitstrata downgrade` goes to {view}")
            return self._switch(open_source(record.source), replace(record, view=view), manifest, "", listen)

    def downgrade(self, name: str, view: str, *, prune: bool = False, listen: Listener = nobody) -> Record:
        """Makes a view with fewer bits the default; fetches nothing. With `prune` what it does not need is removed."""
        with self._changing(listen):
            record, manifest = self._held(name)
            if mean_bits(manifest, view) > mean_bits(manifest, record.view):
                raise BadOption(f"{name} runs at {record.view}; `bitstrata upgrade` goes to {view}")
            if missing := self._missing(manifest, {view}):
                raise MissingFile(
                    f"{missing[0].what}, which view {view} needs, is not on this device; "
                    f"`bitstrata pull {name} --view {view}` fetches it"
                )
            views = covered_views(manifest, view) if prune else {*record.views, view}
            record = replace(record, view=view, views=tuple(sorted(views)))
            self.records.put(record)
            listen(Switched(name, manifest.version, view))
            if prune:
                self._collect()
            return record

    def obtain(self, artifact: HeldArtifact, view: str, *, listen: Listener = nobody) -> None:
        """Fetches what a view of an open artifact needs. It becomes the default if the same release is still held."""
        with self._changing(listen):
            record = self.records.of(artifact.held_name)
            source = open_source(record.source)
            if record.release == artifact.release:
                self._switch(source, replace(record, view=view), artifact.manifest, "", listen)
            else:
                fetch(source, self._missing(artifact.manifest, {view}), self.blobs, listen)

    def open(self, name: str) -> HeldArtifact:
        """The release that is held under a name, ready to read; its signatures are checked where keys are pinned."""
        record = self.records.of(name)
        while True:
            if record.trusted is not None:
                _check_record(record)
            release = record.release
            try:
                content = bytes(self.blobs.read(release.manifest, release.manifest_size))
            except MissingFile:
                now = self.records.of(name)
                if now == record:
                    raise MissingFile(f"the manifest of {name} is lost: `bitstrata pull {name}` fetches it") from None
                record = now  # another process has replaced the model and cleaned up
                continue
            return HeldArtifact(self.blobs, release, content, name)

    def models(self) -> list[Record]:
        return [self.records.of(name) for name in self.records.names()]

    def held_views(self, name: str) -> list[str]:
        """The views of which nothing is missing."""
        _, manifest = self._held(name)
        return [view.name for view in manifest.views if not self._missing(manifest, {view.name})]

    def held_bytes(self, name: str) -> int:
        """On the disk, of what the model's views need."""
        record, manifest = self._held(name)
        needs = self._kept(record, manifest)
        return record.release.manifest_size + sum(one.size for one in needs if self.blobs.has(one.digest, one.size))

    def verify(self, name: str) -> Verified:
        """Reads and hashes every byte that is held of a model. What is wrong is removed, so that it can come again."""
        with self._changing(nobody):
            record = self.records.of(name)
            release = record.release
            files = {release.manifest: (release.manifest_size, "manifest.json")}
            damaged = self.blobs.check({release.manifest: release.manifest_size})
            if not damaged:
                kept = self._kept(record, self._held(name)[1])
                files |= {need.digest: (need.size, need.what) for need in kept}
                damaged = self.blobs.check({need.digest: need.size for need in kept})
        total = sum(size for size, _ in files.values())
        return Verified(name, len(files), total, tuple(files[digest][1] for digest in damaged))

    def gc(self, *, listen: Listener = nobody) -> Freed:
        """Removes everything that no model needs, half-fetched files included."""
        with self._changing(listen):
            return self._collect()

    def remove(self, name: str, *, listen: Listener = nobody) -> Freed:
        """Forgets a model, its pinned keys and version included, and removes what no other model needs."""
        with self._changing(listen):
            self.records.of(name)
            self.records.remove(name)
            return self._collect()

    # What changes are made of; all under the lock.

    def _changing(self, listen: Listener) -> AbstractContextManager[None]:
        return self.home.locked(self.patience, lambda: listen(Waiting()))

    def _offered(
        self, source: Source, name: str | None, version: int | None, trust: bytes | None
    ) -> tuple[Record, Release]:
        """What a source publishes, as the record that would follow the one held, if it may follow it."""
        from bitstrata.device.trust import check_release  # not where nothing is fetched: it takes long to import

        path = published.LATEST if version is None else published.release(version)
        content = download_small(source, path, MAX_RELEASE_BYTES)
        place = f"{path} of {source.address}"
        release = decode_payload(decode_envelope(content, place), Release, place)  # not to be trusted yet
        name = name or release.name
        if not is_name(name):
            raise BadOption(
                f"{name[:200]!a} is no name for a model: letters, digits and _ . @ - are, the first one no dot. Give "
                f"another --name"
            )
        before = self.records.get(name)
        self._refuse_twin(name)
        trusted: KeySet | bytes | None = before.trusted if before else None
        if isinstance(trusted, KeySet) and trust is not None and trust not in trusted.keys:
            raise WrongSignature(
                f"other keys are pinned for {name} than the one given; `bitstrata remove {name}` forgets them"
            )
        trusted = trusted or trust
        accepted = check_release(
            content,
            place,
            trusted=trusted,
            held=before.release if before else None,
            next_key_set=lambda number: download_small(source, published.key_set(number), MAX_RELEASE_BYTES),
        )
        if before and before.source != source.address and trusted is None:
            raise WrongModel(
                f"{name} is held from {before.source}; what {source.address} publishes under that name may be "
                f"something else. Give it a name of its own (--name), or pin a key that signs both"
            )
        same = before is not None and before.release.manifest == release.manifest
        return Record(
            name=name,
            source=source.address,
            envelope=content,
            trusted=accepted.key_set,
            view=before.view if before else "",
            views=before.views if before and same else (),
        ), release

    def _refuse_twin(self, name: str) -> None:
        """Names that differ in case only would be one file on some systems."""
        for other in self.records.names():
            if other != name and other.lower() == name.lower():
                raise WrongModel(
                    f"this device holds a model {other!r}; {name!r} is too near to it: give another --name"
                )

    def _switch(
        self,
        source: Source,
        record: Record,
        manifest: Manifest,
        why: str,
        listen: Listener,
        others: Set[str] = frozenset(),
    ) -> Record:
        """Fetches what is missing for the view of a record and for others, and then makes the record the one that
        holds."""
        covered = covered_views(manifest, record.view)
        self._check_found(record, manifest, covered | others)
        missing = self._missing(manifest, covered | others)
        size = sum(need.size - self.blobs.fetched(need.digest) for need in missing)
        listen(Resolved(record.name, manifest.version, record.trusted is not None, record.view, why, size))
        try:
            fetch(source, missing, self.blobs, listen)
        except NotPublished as error:
            raise NotPublished(
                f"{error}. `bitstrata pull {record.name}` goes to the version that is published now"
            ) from None
        record = replace(record, views=tuple(sorted({*record.views, *covered})))
        if record != self.records.get(record.name):
            self.records.put(record)
        listen(Switched(record.name, manifest.version, record.view))
        return record

    def _check_found(self, record: Record, manifest: Manifest, views: Set[str]) -> None:
        """What lies here already, and was needed by nothing that is held so far, is read before it is relied on."""
        before = self.records.get(record.name)
        known = set()
        if before is not None and before.release == record.release:
            known = {need.digest for need in self._kept(before, manifest)}
        found = {need.digest: need.size for need in needs_of(manifest, views, self.blobs.has)}
        self.blobs.check({digest: size for digest, size in found.items() if digest not in known})

    def _held(self, name: str) -> tuple[Record, Manifest]:
        record = self.records.of(name)
        release = record.release
        try:
            manifest = decode_manifest(bytes(self.blobs.read(release.manifest, release.manifest_size)))
        except BitstrataError as error:
            raise MissingFile(f"{error}. `bitstrata pull {name}` fetches it again") from None
        check_manifest(manifest)
        return record, manifest

    def _missing(self, manifest: Manifest, views: Set[str]) -> list[Need]:
        needs = needs_of(manifest, views, self.blobs.has)
        return [need for need in needs if not self.blobs.has(need.digest, need.size)]

    def _kept(self, record: Record, manifest: Manifest) -> list[Need]:
        return needs_of(manifest, set(record.views), self.blobs.has)

    def _collect(self) -> Freed:
        needed = set()
        for name in self.records.names():
            record, manifest = self._held(name)
            needed |= {record.release.manifest, *(need.digest for need in self._kept(record, manifest))}
        return Freed(*self.blobs.collect(needed))


def _check_record(record: Record) -> None:
    """Raises where the release of a record is not signed by the keys that are pinned in it."""
    from bitstrata.device.trust import check_release

    def refuse(number: int) -> bytes:
        raise NotPublished(f"key set {number}")

    place = f"the record of {record.name}"
    check_release(record.envelope, place, trusted=record.trusted, held=None, next_key_set=refuse)


def base_view(manifest: Manifest) -> str:
    """The view with the fewest bits."""
    return min((view.name for view in manifest.views), key=lambda name: mean_bits(manifest, name))
