"""Writing an artifact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from bitstrata import codes
from bitstrata.atomic import write_atomically
from bitstrata.errors import BadCodes, BadTable, NotAnArtifact
from bitstrata.format import layout
from bitstrata.format.artifact import decode_stratum, decode_view
from bitstrata.format.input_description import InputDescription
from bitstrata.format.manifest import (
    FORMAT,
    FORMAT_VERSION,
    Manifest,
    Stratum,
    ViewEntry,
    check_manifest,
    decode_manifest,
    encode_manifest,
    segment_digest,
    sha256,
)
from bitstrata.format.planes import pack_planes, pad
from bitstrata.format.tensors import DTYPES, encode_tensors, lay_out
from bitstrata.graph import Graph, Network, View, Weight, check_graph, check_view
from bitstrata.graph.network import Floats, check_floats
from bitstrata.graph.ops import Shape

#: What an artifact's folder may hold: its files, and what a writer that was killed left of them.
_OURS = re.compile(
    r"(manifest\.json|(base|enhance-[2-8]|view-[A-Za-z0-9_.@-]+)\.safetensors)|\.[^/]+\.[0-9a-f]{16}\.partial", re.ASCII
)


def write_artifact(
    path: str | Path, network: Network, *, name: str, version: int = 1, input: InputDescription
) -> Manifest:
    """Writes a network as the artifact `path`, a folder, and returns its manifest.

    An old artifact is replaced, and nothing of it is left behind; anything else is not touched. The old manifest goes
    first and the new one comes last, so a crash leaves the old artifact, the new one, or a folder without manifest,
    which every reader refuses and the next writer takes over.
    """
    manifest, files = encode_artifact(network, name=name, version=version, input=input)
    folder = Path(path)
    _check_replaceable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / layout.MANIFEST).unlink(missing_ok=True)
    for file, content in files.items():
        if file != layout.MANIFEST:
            write_atomically(folder / file, content)
    for stale in folder.iterdir():
        if stale.name not in files:
            stale.unlink(missing_ok=True)
    write_atomically(folder / layout.MANIFEST, files[layout.MANIFEST])
    return manifest


def encode_artifact(
    network: Network, *, name: str, version: int = 1, input: InputDescription
) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest and the bytes of every file, the manifest's included, by name; the same for the same network."""
    widths = codes.check_widths(network.widths)
    shapes = check_graph(network.graph, widths[-1], (1, *input.shape))
    check_weights(network)
    for view in network.views:
        check_view(view, network.graph, widths, shapes)
    files: dict[str, bytes] = {}
    strata = []
    for index, bits in enumerate(widths):
        file = layout.stratum_file(index, widths)
        files[file] = content = stratum_bytes(network, index)
        tensors = layout.stratum_tensors(network.graph, widths, index)
        segments = tuple(
            segment_digest(content, offset, tensor.size)
            for offset, tensor in zip(lay_out(tensors).offsets, tensors, strict=True)
        )
        strata.append(Stratum(file=file, bits=bits, size=len(content), sha256=sha256(content), segments=segments))
    entries = []
    for view in network.views:
        entry, content = encode_view(network.graph, view, shapes)
        files[entry.file] = content
        entries.append(entry)
    manifest = Manifest(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        name=name,
        version=version,
        widths=widths,
        input=input,
        graph=network.graph,
        strata=tuple(strata),
        views=tuple(entries),
    )
    files[layout.MANIFEST] = encode_manifest(manifest)
    return _as_read(files), files


def _as_read(files: dict[str, bytes]) -> Manifest:
    """The manifest as a reader gets it: what a reader would refuse is refused before it is written."""
    manifest = decode_manifest(files[layout.MANIFEST])
    shapes = check_manifest(manifest)
    for index, stratum in enumerate(manifest.strata):
        decode_stratum(manifest, index, files[stratum.file])
    for view in manifest.views:
        decode_view(manifest, shapes, view.name, files[view.file])
    return manifest


def check_weights(network: Network) -> None:
    """Raises where the codes or floats are not those that the graph names."""
    for kind, given, wanted in (
        ("codes", network.codes, layout.quantised_weights(network.graph)),
        ("float weights", network.floats, layout.float_weights(network.graph)),
    ):
        names = {weight.name for weight in wanted}
        if given.keys() != names:
            raise BadTable(f"the network has {kind} of {sorted(given.keys() ^ names)} too many or too few")
    for weight in layout.quantised_weights(network.graph):
        given_codes = network.codes[weight.name]
        if given_codes.shape != weight.shape:
            raise BadCodes(
                f"codes of {weight.name!r} have the shape {given_codes.shape}, and the graph says {weight.shape}"
            )
        try:
            codes.shift_down(given_codes, network.source_bits, network.source_bits)
        except BadCodes as error:
            raise BadCodes(f"weight {weight.name!r}: {error}") from None
    for weight in layout.float_weights(network.graph):
        check_floats(weight.name, network.floats[weight.name], weight.shape)


def stratum_bytes(network: Network, index: int) -> bytes:
    """The file of a stratum."""
    first, last = layout.planes_of(index, network.widths)
    data = [
        pack_planes(network.codes[weight.name], network.source_bits, first, last)
        if weight.quantised
        else pad(_float_bytes(weight, network.floats[weight.name]))
        for weight in layout.stored_weights(network.graph, index)
    ]
    tensors = layout.stratum_tensors(network.graph, network.widths, index)
    return encode_tensors(list(zip(tensors, data, strict=True)))


def encode_view(graph: Graph, view: View, shapes: Mapping[str, Shape]) -> tuple[ViewEntry, bytes]:
    """The file of a view, and what the manifest says of it."""
    with np.errstate(over="ignore"):  # what overflows is refused when it is read back
        content = _view_bytes(graph, view, shapes)
    entry = ViewEntry(
        name=view.name,
        file=layout.view_file(view.name),
        bits=tuple(int(view.bits[weight.name]) for weight in layout.quantised_weights(graph)),
        size=len(content),
        sha256=sha256(content),
    )
    return entry, content


def _view_bytes(graph: Graph, view: View, shapes: Mapping[str, Shape]) -> bytes:
    tables = [view.tables[node.name] for node in layout.tabled_nodes(graph)]
    readers = [view.tables[node.name] for node in layout.code_readers(graph)]
    data = [
        b"".join(table.scale.astype("<f4").tobytes() for table in tables),
        b"".join(table.bias.astype("<f4").tobytes() for table in tables),
        np.array([table.step for table in readers], dtype="<f4").tobytes(),
        *(_float_bytes(weight, view.own[weight.name]) for weight in layout.own_weights(graph)),
        bytes(int(table.zero_point) for table in readers),
    ]
    return encode_tensors(list(zip(layout.view_tensors(graph, shapes), data, strict=True)))


def _float_bytes(weight: Weight, values: Floats) -> bytes:
    """In the type that the weight is stored in; float16 rounds half to even."""
    with np.errstate(over="ignore"):
        stored = values.astype(DTYPES[layout.FLOAT_TYPES[weight.store]])
    if not np.isfinite(stored).all():
        raise BadTable(f"weight {weight.name!r} does not fit {weight.store}: store it as float32")
    return stored.tobytes()


class _Kind(msgspec.Struct):
    format: str


def _check_replaceable(folder: Path) -> None:
    """Raises where writing would destroy something that is not an artifact."""
    refused = f"{folder} is there and is not an artifact; it is not overwritten. Remove it, or choose another path"
    if not folder.exists():
        if folder.is_symlink():
            raise NotAnArtifact(refused)
        return
    if not folder.is_dir():
        raise NotAnArtifact(refused)
    for entry in folder.iterdir():
        if entry.is_symlink() or not entry.is_file() or not _OURS.fullmatch(entry.name):
            raise NotAnArtifact(f"{refused} ({entry.name!a} lies in it)")
    manifest = folder / layout.MANIFEST
    if manifest.exists():
        try:
            kind = msgspec.json.decode(manifest.read_bytes(), type=_Kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise NotAnArtifact(f"{refused} (its {layout.MANIFEST} is another's)") from None
        if kind.format != FORMAT:
            raise NotAnArtifact(f"{refused} (its {layout.MANIFEST} is another's)")
