"""The manifest: what an artifact is, and the size and hash of every byte that belongs to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import msgspec

from bitstrata import codes
from bitstrata.errors import (
    BadManifest,
    BadName,
    BadStrata,
    BadViewEntry,
    BitstrataError,
    DuplicateName,
    ManifestTooLarge,
    NotCanonical,
    TooLarge,
    UnknownFormat,
    UnknownOp,
    UnknownView,
)
from bitstrata.format import layout
from bitstrata.format.input_description import InputDescription
from bitstrata.format.tensors import lay_out
from bitstrata.graph import Graph, check_graph
from bitstrata.graph.ops import Shape
from bitstrata.graph.weights import Name
from bitstrata.limits import MAX_FILE_BYTES, MAX_MANIFEST_BYTES, MAX_NODES, MAX_VIEWS, MAX_WIDTH

FORMAT: Literal["bitstrata"] = "bitstrata"
FORMAT_VERSION: Literal[1] = 1

Bytes = Annotated[int, msgspec.Meta(ge=0, le=MAX_FILE_BYTES)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}(?!\n)$")]
Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Width = Annotated[int, msgspec.Meta(ge=1, le=MAX_WIDTH)]


@dataclass(frozen=True)
class Segment:
    """The bytes of one weight in a stratum: what a device can fetch and verify by itself."""

    weight: str
    offset: int
    """From the start of the file; a multiple of 64, like the size."""
    size: int
    sha256: bytes


class Stratum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of planes; the base holds the shared float weights too."""

    file: str
    bits: Width
    """The width that it lifts to."""
    size: Bytes
    sha256: Sha256
    segments: Annotated[tuple[Digest, ...], msgspec.Meta(max_length=MAX_NODES)]
    """The sha256 of the bytes of each weight that stands in it, in the order of the graph, as base64.

    Where they lie follows from the graph: `Manifest.segments_of`. Small networks would else be made of such numbers.
    """


class ViewEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of tables."""

    name: Name
    file: str
    bits: Annotated[tuple[Width, ...], msgspec.Meta(max_length=MAX_NODES)]
    """One per quantised weight, in the order of the graph."""
    size: Bytes
    sha256: Sha256


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about an artifact but its numbers."""

    format: Literal["bitstrata"]
    format_version: Literal[1]
    name: Name
    version: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)]
    widths: Annotated[tuple[Width, ...], msgspec.Meta(min_length=1, max_length=MAX_WIDTH)]
    input: InputDescription
    graph: Graph
    strata: Annotated[tuple[Stratum, ...], msgspec.Meta(max_length=MAX_WIDTH)]
    views: Annotated[tuple[ViewEntry, ...], msgspec.Meta(min_length=1, max_length=MAX_VIEWS)]

    @property
    def source_bits(self) -> int:
        return self.widths[-1]

    def view(self, name: str) -> ViewEntry:
        for entry in self.views:
            if entry.name == name:
                return entry
        raise UnknownView(f"{self.name} has no view {name!r}; there are {', '.join(one.name for one in self.views)}")

    def segments_of(self, index: int) -> list[Segment]:
        """The segments of a stratum, in their order."""
        tensors = layout.stratum_tensors(self.graph, self.widths, index)
        return [
            Segment(tensor.name, offset, tensor.size, digest)
            for tensor, offset, digest in zip(
                tensors, lay_out(tensors).offsets, self.strata[index].segments, strict=True
            )
        ]

    def needed_strata(self, view: ViewEntry) -> tuple[Stratum, ...]:
        """The strata that a view computes with; the base is always one of them."""
        highest = max(view.bits, default=0)
        return tuple(stratum for index, stratum in enumerate(self.strata) if index == 0 or stratum.bits <= highest)


class _Kind(msgspec.Struct):
    """The two fields that every version has."""

    format: str
    format_version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


_DECODER = msgspec.json.Decoder(Manifest)
_KIND_DECODER = msgspec.json.Decoder(_Kind)


def encode_manifest(manifest: Manifest) -> bytes:
    """The one spelling of a manifest: keys sorted, no spaces, no defaults of ops and weights."""
    # Made anew: of fields that were left out when it was decoded, msgspec would leave out the defaults again.
    complete = msgspec.structs.replace(manifest, input=replace(manifest.input))
    return msgspec.json.encode(complete, order="sorted")


def decode_manifest(content: bytes) -> Manifest:
    """The manifest that these bytes spell, if they spell it in the one way there is. Not yet checked."""
    if len(content) > MAX_MANIFEST_BYTES:
        raise ManifestTooLarge(f"the manifest has {len(content)} bytes, more than {MAX_MANIFEST_BYTES}")
    try:
        kind = _KIND_DECODER.decode(content)
        if kind.format != FORMAT or kind.format_version != FORMAT_VERSION:
            raise UnknownFormat(
                f"the manifest is of format {kind.format[:50]!a}, version {kind.format_version}; this program "
                f"reads {FORMAT}, version {FORMAT_VERSION}. A newer bitstrata may read it"
            )
        manifest = _DECODER.decode(content)
    except msgspec.ValidationError as error:
        raise _refusal(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadManifest(f"the manifest is not JSON: {str(error)[:200]!a}") from None
    if encode_manifest(manifest) != content:
        raise NotCanonical(
            "the manifest is not in the one spelling there is: sorted keys, none twice, no spaces, no spelled-out "
            "defaults"
        )
    return manifest


def check_manifest(manifest: Manifest) -> dict[str, Shape]:
    """Raises where a part does not follow from the others; the shapes of all values for one input."""
    codes.check_widths(manifest.widths)
    shapes = check_graph(manifest.graph, manifest.source_bits, (1, *manifest.input.shape))
    _check_strata(manifest)
    _check_views(manifest, shapes)
    return shapes


def sha256(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def segment_digest(content: bytes | memoryview, offset: int, size: int) -> bytes:
    """The sha256 of a part of a file, as a segment holds it."""
    return hashlib.sha256(memoryview(content)[offset : offset + size]).digest()


def _check_strata(manifest: Manifest) -> None:
    graph, widths = manifest.graph, manifest.widths
    if tuple(stratum.bits for stratum in manifest.strata) != widths:
        raise BadStrata(
            f"the strata lift to {[stratum.bits for stratum in manifest.strata]} bits; the widths are {list(widths)}, "
            f"and each needs its stratum, in order"
        )
    for index, stratum in enumerate(manifest.strata):
        if stratum.file != layout.stratum_file(index, widths):
            raise BadStrata(f"the stratum to {stratum.bits} bits has the file name {stratum.file[:100]!a}")
        tensors = layout.stratum_tensors(graph, widths, index)
        if len(stratum.segments) != len(tensors):
            raise BadStrata(f"{stratum.file} has {len(stratum.segments)} segments; by the graph {len(tensors)}")
        places = lay_out(tensors)
        if stratum.size != places.size:
            raise BadStrata(f"{stratum.file} is to have {stratum.size} bytes; by the graph it has {places.size}")


def _check_views(manifest: Manifest, shapes: dict[str, Shape]) -> None:
    size = lay_out(layout.view_tensors(manifest.graph, shapes)).size
    quantised = layout.quantised_weights(manifest.graph)
    seen: set[str] = set()
    for view in manifest.views:
        # Names that differ in case only would be one file on some systems.
        if view.name.lower() in seen:
            raise DuplicateName(f"two views are named {view.name!r}")
        seen.add(view.name.lower())
        if view.file != layout.view_file(view.name):
            raise BadViewEntry(f"view {view.name!r} has the file name {view.file[:100]!a}")
        if len(view.bits) != len(quantised) or not set(view.bits) <= set(manifest.widths):
            raise BadViewEntry(
                f"view {view.name!r} needs one of the widths {manifest.widths} for each quantised weight"
            )
        if view.size != size:
            raise BadViewEntry(f"{view.file} is to have {view.size} bytes; by the graph it has {size}")


def _refusal(error: msgspec.ValidationError) -> BitstrataError:
    """The class of error for a manifest that is JSON of the wrong kind."""
    if isinstance(error.__cause__, BitstrataError):
        return error.__cause__  # the input description checks itself
    text = str(error)
    reason, _, place = text.rpartition(" - at ")
    message = f"the manifest: {text[:300]!a}"
    if place.endswith(".op`") and reason.startswith("Invalid value"):
        return UnknownOp(f"{message}; this program does not know the op")
    if "matching regex" in reason and not place.endswith("sha256`"):
        return BadName(f"{message}; names are letters, digits and _ . @ -")
    if "of length <=" in reason:
        return TooLarge(message)
    return BadManifest(message)
