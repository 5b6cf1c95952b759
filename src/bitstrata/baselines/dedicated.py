"""One network for each width, with any quantiser: what the paper calls bit-width tailored training.

With the quantiser `learned-step` and `weight_init = "lsq"` it is LSQ, the oracle of the paper's tables (`lsq.py`).
"""

from __future__ import annotations

from bitstrata.baselines.job import Job, Trained


def dedicated(job: Job) -> Trained:
    """Trains a network per width, each from the float network; a server must keep them all."""
    networks = {}
    for bits in job.widths:
        networks[bits] = job.stratify((bits,))
        job.fit(networks[bits], f"{bits}-bits")
    return Trained(networks, sum(job.widths))
