"""From a source to the blobs of this device: everything verified before it gets its name."""

from __future__ import annotations

from collections.abc import Callable

from bitstrata.device.blobs import Blobs
from bitstrata.device.download import download, download_range, download_small
from bitstrata.device.events import Fetching, Listener
from bitstrata.device.held import check_release
from bitstrata.device.needs import Need
from bitstrata.device.sources import Source
from bitstrata.errors import WrongContent
from bitstrata.format import published
from bitstrata.format.manifest import Manifest, check_manifest, decode_manifest, sha256
from bitstrata.format.release import Release


def fetch_manifest(source: Source, release: Release, blobs: Blobs) -> Manifest:
    """The manifest of a release, checked, and kept."""
    if not blobs.check({release.manifest: release.manifest_size}):
        content = bytes(blobs.read(release.manifest, release.manifest_size))
    else:
        path = published.manifest(release.manifest)
        content = download_small(source, path, release.manifest_size)
        if sha256(content) != release.manifest:
            raise WrongContent(f"{path} of {source.address} is not what the release names: its sha256 is another")
    manifest = decode_manifest(content)
    check_release(release, manifest)
    check_manifest(manifest)
    blobs.put(content)
    return manifest


def fetch(source: Source, needs: list[Need], blobs: Blobs, listen: Listener) -> None:
    """Everything in a list of what is missing."""
    if not needs:
        return
    blobs.make_room(sum(need.size - blobs.fetched(need.digest) for need in needs))
    total, done = sum(need.size for need in needs), 0

    def progress(what: str, before: int) -> Callable[[int], None]:
        return lambda size: listen(Fetching(what, before + size, total))

    for run in _runs(needs):
        told = progress(run[0].what, done)
        if run[0].start is None:
            need = run[0]
            download(source, need.path, need.digest, need.size, blobs.partial(need.digest), progress=told)
            blobs.adopt(need.digest)
        else:
            _fetch_segments(source, run, blobs)
            told(sum(need.size for need in run))
        done += sum(need.size for need in run)


def _runs(needs: list[Need]) -> list[list[Need]]:
    """Files one by one; segments together that lie side by side."""
    runs: list[list[Need]] = []
    for need in needs:
        last = runs[-1][-1] if runs else None
        if last and last.start is not None and need.path == last.path and need.start == last.start + last.size:
            runs[-1].append(need)
        else:
            runs.append([need])
    return runs


def _fetch_segments(source: Source, run: list[Need], blobs: Blobs) -> None:
    first = run[0].start or 0
    size = sum(need.size for need in run)
    content = download_range(source, run[0].path, first, first + size)
    for need in run:
        start = (need.start or 0) - first
        segment = content[start : start + need.size]
        if sha256(segment) != need.digest:
            raise WrongContent(f"{need.what}, from {source.address}, is not what was published: its sha256 is another")
        blobs.put(segment)
