"""Networks and artifacts for the tests of the format, made of nothing but numbers."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bitstrata import codes
from bitstrata.format import InputDescription
from bitstrata.graph import Graph, Network, Table, View, Weight, check_graph
from bitstrata.graph.ops import AdaptiveAvgPool, Add, Affine, Conv, Flatten, Linear, Node, Relu

INPUT = InputDescription((3, 9, 7), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3), ("katze", "猫"), crop=0.875)


def small_graph(own: bool = False, store: Any = "float32") -> Graph:
    """A float stem, a residual block with a depthwise layer, and a linear end; sizes that fill no byte."""
    return Graph(
        weights=(
            Weight(name="stem", shape=(5, 3, 3, 3), store=store, own=own),
            Weight(name="block.depthwise", shape=(5, 1, 3, 3)),
            Weight(name="block.pointwise", shape=(5, 5, 1, 1)),
            Weight(name="head", shape=(2, 5), store="float16"),
        ),
        nodes=(
            Conv(name="stem", inputs=("input",), padding=(1, 1, 1, 1), stride=(2, 2)),
            Relu(name="relu", inputs=("stem",)),
            Conv(name="depthwise", inputs=("relu",), padding=(1, 1, 1, 1), groups=5, weight="block.depthwise"),
            Affine(name="norm", inputs=("depthwise",)),
            Conv(name="pointwise", inputs=("norm",), weight="block.pointwise"),
            Add(name="sum", inputs=("pointwise", "relu")),
            AdaptiveAvgPool(name="pool", inputs=("sum",), size=(1, 1)),
            Flatten(name="flat", inputs=("pool",)),
            Linear(name="head", inputs=("flat",)),
        ),
        outputs=("head", "sum"),
    )


def residual_graph(depth: int = 20, labels: int = 10) -> Graph:
    """The CIFAR ResNet of 6 n + 2 layers, with names as long as real ones."""
    weights = [Weight(name="conv1", shape=(16, 3, 3, 3), store="float32")]
    nodes: list[Node] = [
        Conv(name="conv1", inputs=("input",), padding=(1, 1, 1, 1)),
        Relu(name="relu", inputs=("conv1",)),
    ]
    value, channels = "relu", 16
    for stage, out in enumerate((16, 32, 64), 1):
        for block in range((depth - 2) // 6):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            weights += [
                Weight(name=f"{name}.conv1", shape=(out, channels, 3, 3)),
                Weight(name=f"{name}.conv2", shape=(out, out, 3, 3)),
            ]
            nodes += [
                Conv(name=f"{name}.conv1", inputs=(value,), padding=(1, 1, 1, 1), stride=(stride, stride)),
                Relu(name=f"{name}.relu1", inputs=(f"{name}.conv1",)),
                Conv(name=f"{name}.conv2", inputs=(f"{name}.relu1",), padding=(1, 1, 1, 1)),
            ]
            shortcut = value
            if channels != out:
                shortcut = f"{name}.shortcut.0"
                weights.append(Weight(name=shortcut, shape=(out, channels, 1, 1)))
                nodes.append(Conv(name=shortcut, inputs=(value,), stride=(stride, stride)))
            nodes += [
                Add(name=f"{name}.add", inputs=(f"{name}.conv2", shortcut)),
                Relu(name=f"{name}.relu2", inputs=(f"{name}.add",)),
            ]
            value, channels = f"{name}.relu2", out
    weights.append(Weight(name="fc", shape=(labels, 64), store="float32"))
    nodes += [
        AdaptiveAvgPool(name="pool", inputs=(value,), size=(1, 1)),
        Flatten(name="flatten", inputs=("pool",)),
        Linear(name="fc", inputs=("flatten",)),
    ]
    return Graph(weights=tuple(weights), nodes=tuple(nodes), outputs=("fc",))


def network(
    graph: Graph | None = None,
    widths: Sequence[int] = (2, 3, 4),
    input: InputDescription = INPUT,
    mixed: bool = False,
    seed: int = 0,
) -> Network:
    """A network of that graph with numbers that depend on the seed alone, on every machine."""
    graph = graph or small_graph()
    shapes = check_graph(graph, widths[-1], (1, *input.shape))
    stream = _Stream(seed)
    low, high = codes.code_range(widths[-1])
    numbers: dict[str, Any] = {"planes": {}, "floats": {}}
    for weight in graph.weights:
        if weight.quantised:
            values = np.clip(np.rint(stream.normal(weight.count) * (high / 2.5)), low, high).astype(np.int8)
            numbers["planes"][weight.name] = values.reshape(weight.shape)
        elif not weight.own:
            numbers["floats"][weight.name] = _floats(stream, weight)
    quantised = [*numbers["planes"]]
    bits = {str(width): dict.fromkeys(quantised, width) for width in widths}
    if mixed:
        bits["mixed-a"] = {name: widths[index % len(widths)] for index, name in enumerate(quantised)}
    views = []
    for name, chosen in bits.items():
        tables = {}
        for node in graph.nodes:
            if node.has_table:
                channels = shapes[node.name][1]
                scale, bias = stream.normal(channels), stream.normal(channels)
                weight = graph.weight_of(node)
                reads_codes = weight is not None and weight.quantised
                tables[node.name] = Table(
                    scale,
                    bias,
                    np.float32(abs(stream.normal(1)[0]) + 0.01) if reads_codes else None,
                    int(weight is not None and weight.quantised and chosen[weight.name]),
                )
        own = {weight.name: _floats(stream, weight) for weight in graph.weights if weight.own}
        views.append(View(name, chosen, tables, own))
    return Network(graph, tuple(widths), numbers["planes"], numbers["floats"], tuple(views))


def _floats(stream: "_Stream", weight: Weight) -> Any:
    values = stream.normal(weight.count).reshape(weight.shape)
    return values.astype(np.float16).astype(np.float32) if weight.store == "float16" else values


class _Stream:
    """Numbers from a hash: the same under every version of NumPy, which its own generators do not promise."""

    def __init__(self, seed: int) -> None:
        self._seed, self._block = seed, 0

    def normal(self, count: int) -> Any:
        """About normal: sums of eight uniform bytes, exact in float32."""
        data = bytearray()
        while len(data) < 8 * count:
            data += hashlib.sha512(f"{self._seed}/{self._block}".encode()).digest()
            self._block += 1
        sums = np.frombuffer(bytes(data[: 8 * count]), dtype=np.uint8).reshape(count, 8).sum(axis=1, dtype=np.int64)
        return ((sums - 1020).astype(np.float32) / np.float32(256)).astype(np.float32)


def tamper(folder: Path, file: str, change: Callable[[bytes], bytes]) -> None:
    """Changes a file and makes size and hashes in the manifest fit, so that what lies behind that check is reached."""
    content = change((folder / file).read_bytes())
    (folder / file).write_bytes(content)

    def fix(manifest: dict[str, Any]) -> None:
        for entry in (*manifest["strata"], *manifest["views"]):
            if entry["file"] == file:
                entry["size"], entry["sha256"] = len(content), hashlib.sha256(content).hexdigest()
                digests = [base64.b64encode(digest).decode() for digest in _digests(content)]
                if len(entry.get("segments", ())) == len(digests) > 0:
                    entry["segments"] = digests

    edit_manifest(folder, fix)


def _digests(content: bytes) -> list[bytes]:
    start = 8 + int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8:start])
        places = [entry["data_offsets"] for entry in header.values()]
        return [hashlib.sha256(content[start + begin : start + end]).digest() for begin, end in places]
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return []  # the header was damaged on purpose


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a manifest and writes it in canonical form."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_bytes(msgspec.json.encode(manifest, order="sorted"))


def edit_header(content: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Changes the JSON of a tensor file's header and pads it again."""
    length = int.from_bytes(content[:8], "little")
    header = change(content[8 : 8 + length].rstrip(b" "))
    header += b" " * (-(8 + len(header)) % 64)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]
