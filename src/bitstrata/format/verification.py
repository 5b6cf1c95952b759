"""Checking every byte of an artifact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bitstrata.errors import WrongHash
from bitstrata.format import layout
from bitstrata.format.artifact import Artifact, decode_stratum, decode_view
from bitstrata.format.files import read_verified
from bitstrata.format.manifest import segment_digest


@dataclass(frozen=True)
class Verification:
    """What was checked and found sound."""

    name: str
    version: int
    files: dict[str, int]
    """Bytes, by file."""
    segments: int
    views: tuple[str, ...]
    other_files: tuple[str, ...]
    """What lies in the folder and is no part of the artifact."""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


def verify_artifact(path: str | Path) -> Verification:
    """Reads every file anew, holds it against its hash, its segments', the graph and the rules; raises on a defect."""
    artifact = Artifact.open(path)
    manifest = artifact.manifest
    files = {layout.MANIFEST: artifact.manifest_size}
    segments = 0
    for index, stratum in enumerate(manifest.strata):
        content = read_verified(artifact.folder, stratum.file, stratum.size, stratum.sha256)
        decode_stratum(manifest, index, content)
        for segment in manifest.segments_of(index):
            if segment_digest(content, segment.offset, segment.size) != segment.sha256:
                raise WrongHash(
                    f"{stratum.file}: the manifest has another sha256 for the segment of {segment.weight!r}"
                )
            segments += 1
        files[stratum.file] = len(content)
    for view in manifest.views:
        content = read_verified(artifact.folder, view.file, view.size, view.sha256)
        decode_view(manifest, artifact.shapes, view.name, content)
        files[view.file] = len(content)
    others = sorted({entry.name for entry in artifact.folder.iterdir()} - files.keys())
    return Verification(artifact.name, artifact.version, files, segments, artifact.views, tuple(others))
