"""All widths together from one source weight: the paper's own method (section 4), and AdaBits on its quantiser."""

from __future__ import annotations

from bitstrata.baselines.job import Job, Trained

FLOAT_BITS = 32


def joint(job: Job) -> Trained:
    """One network for all widths; the recipe chooses objective and distillation, the options everything else."""
    net = job.stratify()
    job.fit(net, "joint")
    return Trained(dict.fromkeys(net.widths, net), net.widths[-1] if net.options.nested else FLOAT_BITS)
