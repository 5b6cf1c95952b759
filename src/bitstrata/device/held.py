"""An artifact as a device holds it: its files are blobs, and a mixed view may have brought single segments only."""

from __future__ import annotations

from bitstrata.device.blobs import Blobs
from bitstrata.errors import BadArtifact, MissingFile, WrongModel
from bitstrata.format.artifact import Artifact, Segments, check_segment
from bitstrata.format.files import Content
from bitstrata.format.manifest import Manifest, check_manifest, decode_manifest
from bitstrata.format.release import Release


class HeldArtifact(Artifact):
    """One release. What it was opened for stays what it reads, whatever the store switches to."""

    def __init__(self, blobs: Blobs, release: Release, content: bytes, name: str) -> None:
        """`content` are the verified bytes of the manifest; `name` is the one that the model has on this device."""
        manifest = decode_manifest(content)
        check_release(release, manifest)
        super().__init__(blobs.home.blobs, manifest, len(content), check_manifest(manifest))
        self.blobs = blobs
        self.release = release
        self.held_name = name

    def _read(self, file: str, size: int, digest: str) -> Content:
        try:
            return self.blobs.read(digest, size)
        except MissingFile:
            raise MissingFile(
                f"{file} of {self.held_name} is not on this device: `bitstrata upgrade {self.held_name} --bits N` "
                f"fetches what more bits need, `bitstrata pull {self.held_name}` what was lost"
            ) from None
        except BadArtifact as error:
            raise type(error)(
                f"{file} of {self.held_name} is damaged: `bitstrata verify {self.held_name}` removes what is, and "
                f"`bitstrata pull {self.held_name}` fetches it again"
            ) from error

    def _read_stratum(self, index: int) -> Segments:
        return _Arriving(self, index)

    def read_segments(self, index: int, weight: str) -> Segments:
        """The segment of a weight, by itself or with all others of its stratum, as they are held."""
        stratum = self.manifest.strata[index]
        segment = next(one for one in self.manifest.segments_of(index) if one.weight == weight)
        digest = segment.sha256.hex()
        if self.blobs.has(stratum.sha256, stratum.size) or not self.blobs.has(digest, segment.size):
            return super()._read_stratum(index)  # where neither is there, it says what is missing
        content = memoryview(self._read(f"{weight} of {stratum.file}", segment.size, digest))
        check_segment(self.manifest, index, next(one for one in self.graph.weights if one.name == weight), content)
        return {weight: content}


class _Arriving(dict[str, memoryview]):
    """The segments of a stratum, each read when it is first asked for: others may come while the model runs."""

    def __init__(self, artifact: HeldArtifact, index: int) -> None:
        super().__init__()
        self._artifact, self._index = artifact, index

    def __missing__(self, weight: str) -> memoryview:
        found = self._artifact.read_segments(self._index, weight)
        self.update(found)
        return found[weight]


def check_release(release: Release, manifest: Manifest) -> None:
    """Raises where a release names a manifest of something else."""
    if (manifest.name, manifest.version) != (release.name, release.version):
        raise WrongModel(
            f"the release is of {release.name}, version {release.version}; its manifest is of {manifest.name[:100]!a}, "
            f"version {manifest.version}"
        )
