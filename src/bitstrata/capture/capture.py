"""`capture`: from a trained stratified network to the graph, codes and tables that a device runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from torch import Tensor, nn

from bitstrata import codes
from bitstrata.capture.drafts import Terms, WeightSource
from bitstrata.capture.layers import step_in_use
from bitstrata.capture.naming import unique_names
from bitstrata.capture.record import record
from bitstrata.capture.simplify import simplified
from bitstrata.errors import BadCodes, BadInput, BadOption, CannotCapture, NotCalibrated, NotFinite
from bitstrata.graph import INPUT, Graph, Network, Table, View, Weight, check_graph, check_view
from bitstrata.graph.network import Floats
from bitstrata.graph.ops import Shape
from bitstrata.training.binding import bind
from bitstrata.training.net import StratifiedNet

FloatStore = Literal["float32", "float16"]


@dataclass(frozen=True)
class _Captured:
    """One view: its graph, and where its numbers come from."""

    graph: Graph
    sources: dict[str, WeightSource]
    tables: dict[str, Table]


def capture(net: StratifiedNet, example: Tensor, *, float_store: FloatStore = "float32") -> Network:
    """The network as a device runs it, with normalisation and steps folded into one table per layer and width.

    The model's own code is run once per width, on a stand-in that has the shape of `example` and no numbers. Batch,
    height and width stay free. `float_store` is the type in which layers that stay float are stored.

    Raises `CannotCapture` where the model computes what a device cannot, naming the module and the op.
    """
    return capture_shape(net, tuple(example.shape), float_store)


def capture_shape(net: StratifiedNet, shape: Shape, float_store: FloatStore) -> Network:
    """As `capture`, from the shape alone."""
    if float_store not in get_args(FloatStore):
        raise BadOption(f"float_store={float_store!r} is not one of {', '.join(get_args(FloatStore))}")
    _check(net, shape)
    captured = {bits: _capture(bind(net.model, bits, 1.0), shape, float_store) for bits in net.widths}
    source = captured[net.widths[-1]]
    for bits, one in captured.items():
        if one.graph != source.graph:
            raise CannotCapture(
                f"at {bits} bits the model computes {_difference(one.graph, source.graph)} than at {net.widths[-1]} "
                f"bits. All widths of an artifact share one graph: the model's code must not depend on the width"
            )
    return _network(net.widths, {str(bits): one for bits, one in captured.items()}, shape)


def capture_mixed(
    net: StratifiedNet, mixed: nn.Module, name: str, shape: Shape, *, float_store: FloatStore = "float32"
) -> Network:
    """A network of one view, `mixed`: one that `allocation.mixed_network` made of `net`. Graph and codes are net's."""
    _check(net, shape)
    return _network(net.widths, {name: _capture(bind(mixed, None, 1.0), shape, float_store)}, shape)


def _network(widths: tuple[int, ...], captured: Mapping[str, _Captured], shape: Shape) -> Network:
    """The views of one graph and what they share, checked."""
    *_, source = captured.values()
    graph = source.graph
    shared = {w.name: w for w in graph.weights if not w.own}
    network = Network(
        graph=graph,
        widths=widths,
        codes={name: _codes(name, source.sources[name]) for name, w in shared.items() if w.quantised},
        floats={name: _floats(w, source.sources[name]) for name, w in shared.items() if not w.quantised},
        views=tuple(_view(name, one) for name, one in captured.items()),
    )
    shapes = check_graph(graph, network.source_bits, shape)
    for view in network.views:
        check_view(view, graph, network.widths, shapes)
    return network


def _check(net: StratifiedNet, shape: Shape) -> None:
    if len(shape) not in (2, 4) or min(shape) < 1:
        raise BadInput(
            f"the example has the shape {shape}; it must be (batch, channels, height, width) or (batch, features)"
        )
    if not net.options.compensated and len(net.widths) > 1:
        raise CannotCapture(
            "this network was stratified with compensated=False, which is for ablations only: a device always adds the "
            "compensation to shifted-down codes. Stratify and train with compensated=True"
        )
    for name, layer in net.stratified_layers():
        if not layer.is_exact:
            raise CannotCapture(
                f"layer {name!r} uses the quantizer {net.options.quantizer!r}, which is there for comparison and has "
                f"no integer form that a device could run. Stratify with quantizer='learned-step'"
            )
        for bits in net.widths:
            if not getattr(layer.input_quantiser, f"calibrated_{bits}"):
                raise NotCalibrated(
                    f"layer {name!r} has no activation step at {bits} bits yet. Train the network, or run "
                    f"net.calibrate(batches), before capturing it"
                )


def _capture(view: nn.Module, shape: Shape, float_store: FloatStore) -> _Captured:
    drafts, outputs = simplified(*record(view, shape))
    names = dict(zip(drafts, unique_names(draft.place or draft.kind_name for draft in drafts), strict=True))
    weights: dict[tuple[int, bool], Weight] = {}
    sources: dict[str, WeightSource] = {}
    nodes = []
    for draft in drafts:
        weight = None
        if draft.weight is not None:
            weight = weights.get(draft.weight.key)
            if weight is None:
                store = "planes" if draft.weight.quantiser is not None else float_store
                weight = Weight(name=names[draft], shape=draft.weight.shape, store=store, own=draft.weight.own)
                weights[draft.weight.key] = weight
                sources[weight.name] = draft.weight
        inputs = tuple(names.get(one, INPUT) for one in draft.inputs)
        nodes.append(draft.op(names[draft], inputs, weight.name if weight is not None else None))
    graph = Graph(
        weights=tuple(weights.values()),
        nodes=tuple(nodes),  # type: ignore[arg-type]
        outputs=tuple(names.get(one, INPUT) for one in outputs),
    )
    tables = {names[draft]: _table(draft.terms) for draft in drafts if draft.terms is not None}
    return _Captured(graph, sources, tables)


def _table(terms: Terms) -> Table:
    """Folded in float64, rounded once; what becomes infinite is refused by `check_view`."""
    with np.errstate(over="ignore"):
        return Table(terms.scale.astype(np.float32), terms.bias.astype(np.float32), terms.step, terms.zero_point)


def _view(name: str, captured: _Captured) -> View:
    weights = captured.graph.weights
    quantisers = {weight.name: captured.sources[weight.name].quantiser for weight in weights}
    return View(
        name=name,
        bits={name: quantiser.bound_bits() for name, quantiser in quantisers.items() if quantiser is not None},
        tables=captured.tables,
        own={weight.name: _floats(weight, captured.sources[weight.name]) for weight in weights if weight.own},
    )


def _codes(name: str, source: WeightSource) -> codes.Codes:
    quantiser = source.quantiser
    assert quantiser is not None
    try:
        step = step_in_use(quantiser)
        shaped = step if step.ndim == 0 else step.reshape((-1,) + (1,) * (source.tensor.ndim - 1))
        return codes.quantise(_numbers(source.tensor), shaped, quantiser.options.source_bits)
    except BadCodes as error:
        raise NotFinite(f"layer {name!r}: {error}. Train again from an earlier checkpoint") from error


def _floats(weight: Weight, source: WeightSource) -> Floats:
    """A float weight, already rounded to the type in which it is stored."""
    with np.errstate(over="ignore"):
        values = _numbers(source.tensor).astype(weight.store).astype(np.float32)
    if not np.isfinite(values).all():
        raise NotFinite(
            f"layer {weight.name!r} has weights that are not finite as {weight.store}. Train again from an earlier "
            f"checkpoint, or store float layers as float32"
        )
    return values


def _numbers(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().cpu().float().contiguous().numpy()
    return array


def _difference(one: Graph, other: Graph) -> str:
    for first, second in zip(one.nodes, other.nodes, strict=False):
        if first != second:
            return f"other nodes ({first.described}, where the other has {second.described})"
    return "other nodes"
