"""Training: stratify a network, train all its widths together, keep what was learned."""

from bitstrata.training.checkpoint import load_checkpoint as load_checkpoint
from bitstrata.training.checkpoint import save_checkpoint as save_checkpoint
from bitstrata.training.evaluate import Accuracy as Accuracy
from bitstrata.training.evaluate import evaluate as evaluate
from bitstrata.training.fit import Epoch as Epoch
from bitstrata.training.fit import fit as fit
from bitstrata.training.net import StratifiedNet as StratifiedNet
from bitstrata.training.norms import recalculate_norms as recalculate_norms
from bitstrata.training.norms import synchronise_norms as synchronise_norms
from bitstrata.training.objectives import JointLoss as JointLoss
from bitstrata.training.objectives import MinimumNorm as MinimumNorm
from bitstrata.training.parameter_groups import parameter_groups as parameter_groups
from bitstrata.training.recipe import Recipe as Recipe
from bitstrata.training.stratify import stratify as stratify
from bitstrata.training.train_once import load_net as load_net
from bitstrata.training.train_once import train_once as train_once
