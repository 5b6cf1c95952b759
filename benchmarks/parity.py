"""Does the packed network compute what the trained one does? End to end, on a whole test set, at every width.

    python benchmarks/parity.py RUN ARTIFACT --data cifar10:DIR

Compares the torch simulation of a training run with the runtime of the artifact packed from it: how many predictions
are the same, the top-1 accuracy of both, and how many of the codes that quantised layers read differ. The float stem
may differ in its last bit, which flips a code now and then; given the same codes, every layer is exact (tests/runtime).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec
import numpy as np
import torch

from bitstrata.runtime import ReferenceSession, load
from bitstrata.runtime.native import NativeSession
from bitstrata.training import load_net
from bitstrata.training.layers import StratifiedLayer
from bitstrata.zoo.data import load_data


def torch_codes(view: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, np.ndarray]]:
    """The output, and the codes that every quantised layer read, by the name of the layer."""
    seen: dict[str, np.ndarray] = {}
    handles = []
    for name, module in view.named_modules():
        if isinstance(module, StratifiedLayer):

            def note(layer: Any, inputs: Any, name: str = name) -> None:
                codes, _ = layer.input_quantiser.integers(inputs[0])
                seen[name] = codes.numpy().astype(np.int16)

            handles.append(module.register_forward_pre_hook(note))
    try:
        return view(x), seen
    finally:
        for handle in handles:
            handle.remove()


def compare(net: Any, model: Any, bits: int, batches: Any) -> dict[str, float]:
    artifact = model.artifact
    view = artifact.view(str(bits))
    parts = (artifact.source_bits, view, artifact.codes(view), artifact.floats())
    readers = [node for node in artifact.graph.nodes if artifact.graph.is_quantised(node)]
    # The values that quantised layers read, as further outputs of the same network.
    outputs = tuple(dict.fromkeys([*artifact.graph.outputs, *(node.inputs[0] for node in readers)]))
    opened = NativeSession(msgspec.structs.replace(artifact.graph, outputs=outputs), *parts)
    reference = ReferenceSession(artifact.graph, *parts)
    session = model.at(bits)
    count = same = right = right_torch = codes = flips = 0
    simulated = net.at(bits)
    for x, y in batches:
        with torch.inference_mode():
            expected, seen = torch_codes(simulated, x)
        result = session(x.numpy())
        values = dict(zip(outputs, opened(x.numpy()), strict=True))
        for node in readers:
            found = reference.input_codes(node, values[node.inputs[0]]).astype(np.int16)
            difference = found - view.tables[node.name].zero_point != seen[node.name]
            codes, flips = codes + difference.size, flips + int(difference.sum())
        predictions, expected_predictions = result.argmax(1), expected.numpy().argmax(1)
        count += len(y)
        same += int((predictions == expected_predictions).sum())
        right += int((predictions == y.numpy()).sum())
        right_torch += int((expected_predictions == y.numpy()).sum())
    return {
        "images": count,
        "same_prediction_percent": 100 * same / count,
        "top1": 100 * right / count,
        "top1_simulation": 100 * right_torch / count,
        "codes": codes,
        "flipped_codes": flips,
        "flip_rate": flips / codes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("artifact")
    parser.add_argument("--data", required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    net, _ = load_net(arguments.run)
    net.eval()
    model = load(arguments.artifact)
    data = load_data(arguments.data)
    results = {bits: compare(net, model, bits, data.test.batches(250)) for bits in net.widths}
    if arguments.json:
        print(json.dumps(results))
        return
    for bits, one in results.items():
        print(
            f"{bits} bits: {one['same_prediction_percent']:.2f} % of {one['images']} predictions are the same; "
            f"top-1 {one['top1']:.2f} against {one['top1_simulation']:.2f}; {one['flipped_codes']} of "
            f"{one['codes']:,} codes flipped ({one['flip_rate']:.1e})"
        )


if __name__ == "__main__":
    main()
