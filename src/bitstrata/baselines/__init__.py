"""The methods that the paper compares with, on the same quantisers and the same trainer.

Methods (functions of a `Job`): `joint` is the paper's own; `dedicated`, `ascending`, `co_training` and `qat_finetune`
are its comparisons. Quantisers of other papers, for `stratify(quantizer=...)`, have a file each: pact, lq_nets, dsq,
qil, lqw, diffq, adabits.
"""

from bitstrata.baselines.ascending import ascending as ascending
from bitstrata.baselines.co_training import co_training as co_training
from bitstrata.baselines.dedicated import dedicated as dedicated
from bitstrata.baselines.job import Job as Job
from bitstrata.baselines.job import Method as Method
from bitstrata.baselines.job import Trained as Trained
from bitstrata.baselines.joint import joint as joint
from bitstrata.baselines.lsq import lsq as lsq
from bitstrata.baselines.qat_finetune import qat_finetune as qat_finetune
