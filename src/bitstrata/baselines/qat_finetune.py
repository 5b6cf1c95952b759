"""QAT + fine-tuning (section 6.2.2): the highest width is trained, lower ones are shifted down from it and fine-tuned.

The paper gives it the weight size of one source-width network (table 5), so the shifted codes must stay what they are:
fine-tuning trains what belongs to each lower width alone, its norms and activation steps. There is no compensation, as
in figure 5 (b).
"""

from __future__ import annotations

from bitstrata.baselines.job import Job, Trained, freeze_shared


def qat_finetune(job: Job) -> Trained:
    """The highest width first, then each lower one on its frozen weights."""
    net = job.stratify(compensated=False)
    *lower, source = net.widths
    job.fit(net, f"{source}-bits", bits=source)
    freeze_shared(net)
    for bits in reversed(lower):
        job.fit(net, f"{bits}-bits", bits=bits)
    return Trained(dict.fromkeys(net.widths, net), source)
