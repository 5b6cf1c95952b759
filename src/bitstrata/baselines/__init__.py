"""The methods that the paper compares with, on the same quantisers and the same trainer."""

from bitstrata.baselines.lsq import lsq as lsq
