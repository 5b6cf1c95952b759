"""Ascending layer training (section 3.3): the base first, then one enhance plane after the other.

The base network is trained as LSQ trains it. Then, for each higher width, only its binary plane and what belongs to
that width alone (norms, activation steps) are trained; everything that lower widths compute with is frozen, the first
and last layer included.
"""

from __future__ import annotations

from bitstrata.baselines.binary_planes import BinaryPlanes
from bitstrata.baselines.job import Job, Trained, freeze_shared


def ascending(job: Job) -> Trained:
    """One stage for each width, from the lowest up."""
    net = job.stratify(quantizer="binary-planes")
    base, *enhanced = net.widths
    job.fit(net, f"{base}-bits", bits=base)
    freeze_shared(net)
    layers = [layer for _, layer in net.stratified_layers()]
    quantisers = [(one, one.weight_quantiser) for one in layers if isinstance(one.weight_quantiser, BinaryPlanes)]
    for layer, quantiser in quantisers:
        # The base has moved since the planes were set.
        quantiser.start_planes(layer.weight)
    below = base
    for bits in enhanced:
        planes = [p for _, q in quantisers for width in range(below + 1, bits + 1) for p in q.plane_parameters(width)]
        for plane in planes:
            plane.requires_grad_(True)
        job.fit(net, f"{bits}-bits", bits=bits)
        for plane in planes:
            plane.requires_grad_(False)
        below = bits
    return Trained(dict.fromkeys(net.widths, net), net.widths[-1])
