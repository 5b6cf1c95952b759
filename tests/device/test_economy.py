"""Body bytes on the wire, counted at the server, for a model of more than 8 MB; `pytest -s` prints them."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from artifacts import INPUT
from device.server import Server

from bitstrata.device import download
from bitstrata.device.retries import Retries
from bitstrata.device.store import Store
from bitstrata.errors import SourceUnreachable
from bitstrata.format import Manifest, write_artifact
from bitstrata.graph import Graph, Network, Table, View, Weight, ops
from bitstrata.publish.destinations import FolderDestination
from bitstrata.publish.push import push

LAYERS = ("one", "two", "three", "four")
CHANNELS = 704
MIXED = {"one": 4, "two": 2, "three": 3, "four": 2}


def wide_network() -> Network:
    """Four quantised layers of half a million weights per bit and more, one after the other."""
    rng = np.random.default_rng(0)
    weights = [Weight(name="stem", shape=(CHANNELS, 3, 1, 1), store="float32")]
    nodes: list[ops.Node] = [
        ops.Conv(name="stem", inputs=("input",)),
        ops.Relu(name="relu", inputs=("stem",)),
    ]
    value = "relu"
    for name in LAYERS:
        weights.append(Weight(name=name, shape=(CHANNELS, CHANNELS, 3, 3)))
        nodes += [
            ops.Conv(name=name, inputs=(value,), padding=(1, 1, 1, 1)),
            ops.Relu(name=f"{name}.relu", inputs=(name,)),
        ]
        value = f"{name}.relu"
    graph = Graph(weights=tuple(weights), nodes=tuple(nodes), outputs=(value,))
    ones = np.ones(CHANNELS, dtype=np.float32)

    def view(name: str, bits: dict[str, int]) -> View:
        # Other tables for each view: files that are equal would be fetched once.
        tables = {layer: Table(ones, ones, np.float32(2 ** -bits[layer]), 0) for layer in LAYERS}
        return View(name, bits, {"stem": Table(ones, ones, None), **tables})

    shape = (CHANNELS, CHANNELS, 3, 3)
    return Network(
        graph=graph,
        widths=(2, 3, 4),
        codes={layer: rng.integers(-8, 8, shape, dtype=np.int8) for layer in LAYERS},
        floats={"stem": rng.standard_normal((CHANNELS, 3, 1, 1)).astype(np.float32)},
        views=(*(view(str(bits), dict.fromkeys(LAYERS, bits)) for bits in (2, 3, 4)), view("mixed", MIXED)),
    )


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    folder = tmp_path_factory.mktemp("wide")
    manifest = write_artifact(folder / "wide.strata", wide_network(), name="wide", input=INPUT)
    push(folder / "wide.strata", FolderDestination(folder / "published"))
    return folder / "published", manifest


@pytest.fixture
def wide(published: tuple[Path, Manifest], server: Server) -> Manifest:
    folder, manifest = published
    for path in folder.rglob("*"):
        if path.is_file():
            server.files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return manifest


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "Retries", partial(Retries, first_pause=0.01))


class Counter:
    """Body bytes since it was last asked."""

    def __init__(self, server: Server) -> None:
        self._server, self._before = server, 0

    def __call__(self) -> int:
        found = self._server.body_bytes - self._before
        self._before = self._server.body_bytes
        return found


def test_each_step_fetches_what_is_new_and_no_more(wide: Manifest, server: Server, quick_folder: Path) -> None:
    store, count = Store(quick_folder), Counter(server)
    strata = {stratum.bits: stratum.size for stratum in wide.strata}
    views = {view.name: view.size for view in wide.views}
    assert sum(strata.values()) > 8_000_000
    segments = [{one.weight: one.size for one in wide.segments_of(index)} for index in range(3)]

    store.pull(server.address, "2")
    base = count()
    store.upgrade("wide", "mixed")
    mixed = count()
    store.remove("wide")
    store.pull(server.address, "2")
    count()
    store.upgrade("wide", "3")
    three = count()
    store.upgrade("wide", "4")
    four = count()
    store.downgrade("wide", "2")
    down = count()
    store.pull("wide")
    again = count()
    store.pull("wide", "4")
    back = count()
    print(f"\n{'step':28}{'bytes':>12}{'of which strata and views':>28}")
    needed = {
        "pull at 2 bits": (base, strata[2] + views["2"]),
        "to the mixed view": (
            mixed,
            segments[1]["one"] + segments[1]["three"] + segments[2]["one"] + views["mixed"],
        ),
        "2 to 3 bits": (three, strata[3] + views["3"]),
        "3 to 4 bits": (four, strata[4] + views["4"]),
        "4 to 2 bits": (down, 0),
        "a second pull": (again, 0),
        "to 4 bits again": (back, 0),
    }
    for name, (sent, least) in needed.items():
        print(f"{name:28}{sent:12,}{least:28,}")
        assert least <= sent <= least + 65_536
    assert mixed == needed["to the mixed view"][1]
    assert three == needed["2 to 3 bits"][1]
    assert down == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["one process", "a process each"])
def test_ten_cuts(
    wide: Manifest, server: Server, quick_folder: Path, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cuts at random places; in the second form every one ends the command, and it is given again."""
    size = sum(stratum.size for stratum in wide.strata) + sum(view.size for view in wide.views if view.name != "mixed")
    rng = random.Random(5)
    cuts = [rng.randrange(100_000, 700_000) for _ in range(10)]
    commands = 1
    if restarted:
        monkeypatch.setattr(download, "Retries", partial(Retries, tries=1))
        for cut in cuts:
            # The first answers are `latest.json` and, once, the manifest: those are left whole.
            server.faults.cuts = [2**30] * (2 if commands == 1 else 1) + [cut]
            with pytest.raises(SourceUnreachable):
                Store(quick_folder).pull(server.address, "4")
            commands += 1
    else:
        server.faults.cuts = [2**30] * 2 + cuts
    Store(quick_folder).pull(server.address, "4")
    assert not server.faults.cuts
    sent = server.body_bytes
    print(f"\nten cuts, {commands} commands: {sent:,} bytes sent for {size:,} ({sent / size:.4f})")
    assert size <= sent <= 1.05 * size
    assert not Store(quick_folder).verify("wide").damaged
