"""An artifact on disk: opened by its manifest, read one file at a time as it is needed, nothing trusted unhashed."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bitstrata.codes import Codes
from bitstrata.errors import BadTable, ManifestTooLarge, MissingFile, NotAnArtifact, UnknownWidth, WrongSize
from bitstrata.format import layout
from bitstrata.format.files import Content, read_bounded, read_verified
from bitstrata.format.input_description import InputDescription
from bitstrata.format.manifest import Manifest, check_manifest, decode_manifest
from bitstrata.format.planes import PackedCodes, check_padding, check_plane_padding, split_segment
from bitstrata.format.tensors import DTYPES, OWN, as_array, decode_expected
from bitstrata.graph import Graph, Table, View, Weight, check_view
from bitstrata.graph.network import Floats, check_floats
from bitstrata.graph.ops import Shape
from bitstrata.limits import MAX_MANIFEST_BYTES

Segments = dict[str, memoryview]


class Artifact:
    """A `.strata` folder. Arrays that it gives out are read-only. Safe to use from several threads."""

    def __init__(self, folder: Path, manifest: Manifest, manifest_size: int, shapes: Mapping[str, Shape]) -> None:
        self.folder = folder
        self.manifest = manifest
        self.manifest_size = manifest_size
        self.shapes = shapes
        """The shape of every value, for one input of the described size."""
        self._strata: dict[int, Segments] = {}
        self._views: dict[str, View] = {}
        self._lock = threading.RLock()

    @classmethod
    def open(cls, path: str | Path) -> Artifact:
        """Reads and checks the manifest, and nothing else."""
        folder = Path(path)
        try:
            content = read_bounded(folder, layout.MANIFEST, MAX_MANIFEST_BYTES)
        except MissingFile:
            raise NotAnArtifact(
                f"{folder} holds no {layout.MANIFEST}: it is no artifact, or one whose writing was cut short"
            ) from None
        except WrongSize as error:
            raise ManifestTooLarge(str(error)) from None
        manifest = decode_manifest(content)
        return cls(folder, manifest, len(content), check_manifest(manifest))

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> int:
        return self.manifest.version

    @property
    def graph(self) -> Graph:
        return self.manifest.graph

    @property
    def widths(self) -> tuple[int, ...]:
        return self.manifest.widths

    @property
    def source_bits(self) -> int:
        return self.manifest.source_bits

    @property
    def input(self) -> InputDescription:
        return self.manifest.input

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views, in order."""
        return tuple(view.name for view in self.manifest.views)

    def view(self, name: str) -> View:
        """The widths and tables of a view, from its own small file."""
        entry = self.manifest.view(name)
        with self._lock:
            if name not in self._views:
                content = self._read(entry.file, entry.size, entry.sha256)
                self._views[name] = decode_view(self.manifest, self.shapes, name, content)
            return self._views[name]

    def codes(self, view: View | str) -> dict[str, Codes]:
        """The codes of every quantised weight at the width it has in the view, from no more strata than that takes."""
        return {name: packed.unpack() for name, packed in self.packed_codes(view).items()}

    def packed_codes(self, view: View | str) -> dict[str, PackedCodes]:
        """The same, not unpacked: the planes in the memory that they were read to."""
        bits = (self.view(view) if isinstance(view, str) else view).bits
        weights = layout.quantised_weights(self.graph)
        if bits.keys() != {weight.name for weight in weights}:
            raise BadTable("the view gives widths for other weights than the graph quantises")
        return {weight.name: self._packed(weight, bits[weight.name]) for weight in weights}

    def weight_codes(self, weight: Weight, bits: int) -> Codes:
        """The codes of one quantised weight at one width."""
        return self._packed(weight, bits).unpack()

    def _packed(self, weight: Weight, bits: int) -> PackedCodes:
        if bits not in self.widths:
            raise UnknownWidth(f"{self.name} has no width of {bits} bits; there are {self.widths}")
        planes: list[memoryview] = []
        for index in range(self.widths.index(bits) + 1):
            first, last = layout.planes_of(index, self.widths)
            planes += split_segment(self._stratum(index)[weight.name], weight.count, last - first)
        return PackedCodes(weight.shape, tuple(planes))

    def floats(self) -> dict[str, Floats]:
        """The float weights that all views share."""
        segments = self._stratum(0)
        return {weight.name: _widened(weight, segments[weight.name]) for weight in layout.float_weights(self.graph)}

    def _stratum(self, index: int) -> Segments:
        with self._lock:
            if index not in self._strata:
                self._strata[index] = self._read_stratum(index)
            return self._strata[index]

    def _read_stratum(self, index: int) -> Segments:
        stratum = self.manifest.strata[index]
        content = self._read(stratum.file, stratum.size, stratum.sha256)
        return decode_stratum(self.manifest, index, content)

    def _read(self, file: str, size: int, digest: str) -> Content:
        return read_verified(self.folder, file, size, digest)


def decode_stratum(manifest: Manifest, index: int, content: Content) -> Segments:
    """The segments of a stratum's bytes, by weight, with their padding checked."""
    file, graph = manifest.strata[index].file, manifest.graph
    segments = decode_expected(content, file, layout.stratum_tensors(graph, manifest.widths, index))
    for weight in layout.stored_weights(graph, index):
        check_segment(manifest, index, weight, segments[weight.name])
    return segments


def check_segment(manifest: Manifest, index: int, weight: Weight, segment: memoryview) -> None:
    """Raises where the bits behind the last number of a segment are not zero, or its floats are none."""
    place = f"{manifest.strata[index].file}, weight {weight.name!r}"
    if weight.quantised:
        first, last = layout.planes_of(index, manifest.widths)
        check_plane_padding(segment, weight.count, last - first, place)
    else:
        used = weight.count * DTYPES[layout.FLOAT_TYPES[weight.store]].itemsize
        check_padding(segment, used, place)
        _floats(weight, segment)


def decode_view(manifest: Manifest, shapes: Mapping[str, Shape], name: str, content: Content) -> View:
    """The view that a view file's bytes hold, checked against the graph."""
    entry, graph = manifest.view(name), manifest.graph
    tensors = decode_expected(content, entry.file, layout.view_tensors(graph, shapes))
    scale, bias, steps = (as_array(tensors[table], "F32") for table in ("scale", "bias", "step"))
    tables: dict[str, Table] = {}
    start = reader = 0
    for node in layout.tabled_nodes(graph):
        stop = start + shapes[node.name][1]
        step, zero_point = None, 0
        if graph.is_quantised(node):
            step, zero_point = steps[reader], tensors["zero_point"][reader]
            reader += 1
        tables[node.name] = Table(scale[start:stop], bias[start:stop], step, zero_point)
        start = stop
    bits = {weight.name: b for weight, b in zip(layout.quantised_weights(graph), entry.bits, strict=True)}
    own = {weight.name: _floats(weight, tensors[OWN + weight.name]) for weight in layout.own_weights(graph)}
    view = View(name, bits, tables, own)
    check_view(view, graph, manifest.widths, shapes)
    return view


def _floats(weight: Weight, data: memoryview) -> Floats:
    """A float weight, checked."""
    values = _widened(weight, data)
    check_floats(weight.name, values, weight.shape)
    return values


def _widened(weight: Weight, data: memoryview) -> Floats:
    """A float weight in its logical shape, widened to float32; a segment was checked when it was read."""
    values = as_array(data, layout.FLOAT_TYPES[weight.store])[: weight.count].reshape(weight.shape)
    wide: Floats = values.astype(np.float32, copy=False)
    wide.flags.writeable = False
    return wide
