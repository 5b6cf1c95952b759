"""Adding a view to an artifact: a small file of tables over the planes that are there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from bitstrata.atomic import remove_partial, write_atomically
from bitstrata.errors import BadName, BadOption, DuplicateName, OtherNetwork
from bitstrata.format import layout
from bitstrata.format.artifact import Artifact, decode_view
from bitstrata.format.manifest import (
    Manifest,
    ViewEntry,
    check_manifest,
    decode_manifest,
    encode_manifest,
    segment_digest,
)
from bitstrata.format.writer import check_weights, encode_view, stratum_bytes
from bitstrata.graph import Network, check_view
from bitstrata.graph.weights import Name


def add_view(path: str | Path, network: Network, *, replace: bool = False, version: int | None = None) -> Manifest:
    """Adds the one view of `network` to the artifact `path`, and returns the new manifest.

    The network must be the artifact's: the same graph, and the same codes and floats to the bit. The view's file is
    written first and the manifest last, each in one step, so that a crash leaves the old artifact or the new one. With
    `replace`, a view of that name gives way; a crash can then leave the artifact without it, and never damaged.

    version   of the model, where the artifact is published already: what a published version means never changes
    """
    (view,) = network.views
    artifact = Artifact.open(path)
    old = artifact.manifest
    taken = check_free(artifact, view.name, replace=replace)
    if version is not None and version < old.version:
        raise BadOption(
            f"{artifact.folder} is version {old.version}; a version only goes up, and {version} is below it"
        )
    check_same_network(artifact, network)
    check_view(view, old.graph, old.widths, artifact.shapes)
    entry, content = encode_view(old.graph, view, artifact.shapes)
    others = tuple(one for one in old.views if one is not taken)
    without = msgspec.structs.replace(old, views=others)
    new = msgspec.structs.replace(old, views=(*others, entry), version=old.version if version is None else version)
    spelled = encode_manifest(new)
    # As a reader gets it: what a reader would refuse is refused before it is written.
    checked = decode_manifest(spelled)
    decode_view(checked, check_manifest(checked), view.name, content)
    manifest_file = artifact.folder / layout.MANIFEST
    for file in (manifest_file, artifact.folder / entry.file):
        remove_partial(file)
    if taken is not None and others:
        write_atomically(manifest_file, encode_manifest(without))
        (artifact.folder / taken.file).unlink(missing_ok=True)
    write_atomically(artifact.folder / entry.file, content)
    write_atomically(manifest_file, spelled)
    return checked


def check_free(artifact: Artifact, name: str, *, replace: bool = False) -> ViewEntry | None:
    """Raises where no view of this name can be added; the one that would be replaced."""
    if name.isdigit():
        raise BadName(f"a view cannot be named {name!r}: whole numbers are the names of the uniform widths")
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError:
        raise BadName(f"{name!r} is no name for a view: use letters, digits and _ . @ -, as in mixed-a") from None
    # Names that differ in case only would be one file on some systems.
    taken = next((entry for entry in artifact.manifest.views if entry.name.lower() == name.lower()), None)
    if taken is not None and not replace:
        raise DuplicateName(
            f"{artifact.folder} has a view {taken.name!r} already: choose another name, or ask to replace it"
        )
    return taken


def check_same_network(artifact: Artifact, network: Network) -> None:
    """Raises unless the planes and floats of the artifact are those of the network, all of its graph included."""
    manifest = artifact.manifest
    remedy = (
        f"{artifact.folder} was packed from another checkpoint or network. Give the run that it was packed from, or "
        f"pack this one anew"
    )
    if manifest.widths != network.widths:
        raise OtherNetwork(f"{remedy}: it has the widths {manifest.widths}, not {network.widths}")
    if manifest.graph != network.graph:
        raise OtherNetwork(f"{remedy}: its graph is another")
    check_weights(network)
    for index, stratum in enumerate(manifest.strata):
        content = stratum_bytes(network, index)
        for segment in manifest.segments_of(index):
            if segment_digest(content, segment.offset, segment.size) != segment.sha256:
                raise OtherNetwork(f"{remedy}: in {stratum.file} the weight {segment.weight!r} differs")
