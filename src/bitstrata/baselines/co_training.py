"""Multi-layer co-training (section 3.3): the base and all enhance planes at once, each with a source of its own.

The paper finds that it diverges.
"""

from __future__ import annotations

from bitstrata.baselines.job import Job, Trained


def co_training(job: Job) -> Trained:
    """All widths together, on independent planes."""
    net = job.stratify(quantizer="binary-planes")
    job.fit(net, "joint")
    return Trained(dict.fromkeys(net.widths, net), net.widths[-1])
