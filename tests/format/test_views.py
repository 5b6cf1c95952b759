"""`add_view`: the planes stay, a crash leaves the old artifact or the new one, and nothing foreign is added."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format.samples import INPUT, network

from bitstrata.errors import BadName, BadOption, BadTable, DuplicateName, NotAnArtifact, OtherNetwork
from bitstrata.format import Artifact, add_view, verify_artifact, write_artifact
from bitstrata.graph import Network, View

MIXED = {"block.depthwise": 3, "block.pointwise": 2}


def with_view(name: str = "mixed-a", factor: float = 1.0, **changes: Any) -> Network:
    """The sample network with one view: tables of its widths, the scales multiplied."""
    whole = network()
    views = {view.name: view for view in whole.views}
    tables = dict(views["2"].tables) | {"depthwise": views["3"].tables["depthwise"]}
    tables = {node: replace(one, scale=one.scale * np.float32(factor)) for node, one in tables.items()}
    return replace(whole, views=(View(name, MIXED, tables, views["2"].own),), **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "net.strata", network(), name="net", input=INPUT)
    return tmp_path / "net.strata"


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_a_view_is_a_file_and_a_line_of_the_manifest(path: Path) -> None:
    before = contents(path)
    manifest = add_view(path, with_view())
    after = contents(path)
    assert set(after) - set(before) == {"view-mixed-a.safetensors"}
    assert [file for file in before if before[file] != after[file]] == ["manifest.json"]
    assert [view.name for view in manifest.views] == ["2", "3", "4", "mixed-a"]
    found = Artifact.open(path)
    assert found.manifest == manifest
    assert found.view("mixed-a").bits == MIXED
    assert verify_artifact(path).views == ("2", "3", "4", "mixed-a")
    assert not verify_artifact(path).other_files


def test_the_same_view_gives_the_same_bytes(path: Path, tmp_path: Path) -> None:
    add_view(path, with_view())
    write_artifact(tmp_path / "again.strata", network(), name="net", input=INPUT)
    add_view(tmp_path / "again.strata", with_view())
    assert contents(path) == contents(tmp_path / "again.strata")
    whole = network()
    written = replace(whole, views=(*whole.views, *with_view().views))
    write_artifact(tmp_path / "at-once.strata", written, name="net", input=INPUT)
    assert contents(path) == contents(tmp_path / "at-once.strata")


@pytest.mark.parametrize("name", ["2", "3", "17", "007"])
def test_whole_numbers_are_kept_for_uniform_views(path: Path, name: str) -> None:
    with pytest.raises(BadName, match="uniform widths"):
        add_view(path, with_view(name), replace=True)


@pytest.mark.parametrize("name", ["", "../up", "a b", "x" * 200, ".hidden"])
def test_names_that_no_file_should_have(path: Path, name: str) -> None:
    with pytest.raises(BadName, match="no name for a view"):
        add_view(path, with_view(name))


def test_a_taken_name_is_refused_unless_it_is_to_be_replaced(path: Path) -> None:
    add_view(path, with_view())
    before = contents(path)
    for name in ("mixed-a", "Mixed-A"):
        with pytest.raises(DuplicateName, match="has a view 'mixed-a' already"):
            add_view(path, with_view(name, 2.0))
    assert contents(path) == before
    old = Artifact.open(path).view("mixed-a").tables["norm"].scale
    add_view(path, with_view(factor=2.0), replace=True)
    np.testing.assert_array_equal(Artifact.open(path).view("mixed-a").tables["norm"].scale, old * 2)
    add_view(path, with_view("Mixed-A"), replace=True)
    assert verify_artifact(path).views == ("2", "3", "4", "Mixed-A")
    assert not verify_artifact(path).other_files


def test_a_new_version_where_the_old_one_is_published(path: Path) -> None:
    assert add_view(path, with_view(), version=5).version == 5
    with pytest.raises(BadOption, match="version 5; a version only goes up, and 4 is below it"):
        add_view(path, with_view("b"), version=4)


def changed(name: str, number: int) -> Network:
    whole = with_view()
    codes = {key: array.copy() for key, array in whole.codes.items()}
    codes[name].flat[number] ^= 1
    return replace(whole, codes=codes)


def test_other_codes_floats_graphs_and_widths_are_refused(path: Path) -> None:
    before = contents(path)
    with pytest.raises(OtherNetwork, match=r"pack this one anew: in enhance-4\S+ the weight 'block.pointwise' differs"):
        add_view(path, changed("block.pointwise", -1))
    whole = with_view()
    floats = {name: values + np.float32(1) for name, values in whole.floats.items()}
    with pytest.raises(OtherNetwork, match=r"in base\.safetensors the weight"):
        add_view(path, replace(whole, floats=floats))
    graph = whole.graph.__class__(
        weights=whole.graph.weights, nodes=whole.graph.nodes, outputs=tuple(reversed(whole.graph.outputs))
    )
    with pytest.raises(OtherNetwork, match="its graph is another"):
        add_view(path, replace(whole, graph=graph))
    with pytest.raises(OtherNetwork, match="it has the widths"):
        add_view(path, replace(whole, widths=(2, 4)))
    (view,) = whole.views
    with pytest.raises(BadTable, match="is to have 5 bits"):
        add_view(path, replace(whole, views=(replace(view, bits=dict(MIXED) | {"block.pointwise": 5}),)))
    assert contents(path) == before
    with pytest.raises(NotAnArtifact):
        add_view(path.parent / "nowhere", whole)


class Killed(BaseException):
    """Ends everything, as a signal would."""


@pytest.mark.parametrize("replaced", [False, True])
def test_a_crash_at_any_step_leaves_a_sound_artifact(
    path: Path, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after every write, rename and removal in turn; afterwards the same command completes it."""
    if replaced:
        add_view(path, with_view(factor=3.0))
    steps = {name: getattr(os, name) for name in ("open", "fsync", "replace", "unlink")}
    whole = contents(path)
    allowed = {("2", "3", "4"), ("2", "3", "4", "mixed-a")}
    seen = set()
    for number in range(60):
        for file in path.iterdir():
            file.unlink()
        for file_name, content in whole.items():
            (path / file_name).write_bytes(content)
        count = 0

        def step(name: str, *arguments: Any, at: int = number, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == 2 * at:
                raise Killed
            result = steps[name](*arguments, **options)
            if count == 2 * at + 1:
                raise Killed
            count += 1
            return result

        with monkeypatch.context() as patch:
            for name in steps:
                patch.setattr(os, name, lambda *a, name=name, **o: step(name, *a, **o))
            try:
                add_view(path, with_view(), replace=replaced)
                finished = True
            except Killed:
                finished = False
        found = verify_artifact(path).views
        assert found in allowed
        seen.add(found)
        add_view(path, with_view(), replace=True)
        assert verify_artifact(path).views == ("2", "3", "4", "mixed-a")
        assert not verify_artifact(path).other_files
        if finished:
            break
    assert finished
    assert number > 5
    assert seen == allowed
