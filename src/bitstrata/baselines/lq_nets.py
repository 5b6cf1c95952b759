"""LQ-Nets: levels that are sums of learned basis values, fitted to the data rather than to the loss.

Zhang et al., "LQ-Nets: Learned Quantization for Highly Accurate and Compact Deep Neural Networks" (ECCV 2018),
section 3, and the code published with it.

    levels      q_b = v . b for all b in {-1, 1}^k (weights) or {0, 1}^k (inputs); v has k values: one v for each output
                channel of a weight, one for each input
    forward     the nearest level
    basis       one round of QEM in every training step: with the codes B of the values x at the present basis,
                v' = (B B^T)^-1 B x, and then v <- 0.9 v + 0.1 v'
    gradients   straight through; for inputs 0 above the highest level. The basis takes none

What was ruled here:

The basis of a weight starts as the paper's, with the deviation of each channel in place of He's, followed by rounds of
QEM until it rests, since weights here are trained already. That of an input starts evenly spaced, with the step of
least squared error on the first data (`activation_init`).

The sums of QEM are regularised towards the present basis by a millionth of the count, so that levels without values
leave it solvable. In a run of several processes they span all of them. Passes without gradients change nothing.

There is no signed form for inputs: layers whose input goes below 0 are refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bitstrata.baselines.clips import refuse_negative
from bitstrata.baselines.straight import straight_through, wide
from bitstrata.training import distributed
from bitstrata.training.calibration import Histogram, choose_step
from bitstrata.training.options import Options
from bitstrata.training.quantiser_kinds import ActivationQuantiser, Quantizer, WeightQuantiser

KEPT = 0.9
REGULARISATION = 1e-6
#: The third quartile of the normal distribution.
QUARTILE = 0.6745
FIRST_ROUNDS = 20


def binary_codes(bits: int, zero: float, device: torch.device) -> Tensor:
    """All codes of that many digits, each `zero` or 1, one per row."""
    digits = torch.arange(1 << bits, device=device)[:, None] >> torch.arange(bits, device=device) & 1
    return torch.where(digits == 1, 1.0, zero)


def sorted_levels(basis: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Levels in ascending order, the thresholds between them, and the code of each; a row for each row of `basis`."""
    # Not a matrix product, which autocast would round.
    levels, order = torch.sort((basis[..., None, :] * codes).sum(-1), dim=-1)
    return levels, 0.5 * (levels[..., 1:] + levels[..., :-1]), codes[order]


def fitted_basis(basis: Tensor, codes: Tensor, counts: Tensor, sums: Tensor) -> Tensor:
    """The least-squares basis where `counts` values with these `sums` have the `codes`; a row for each row of basis."""
    share = (counts / counts.sum(-1, keepdim=True)).double()
    mean = (sums / counts.sum(-1, keepdim=True)).double()
    wide_codes = codes.double()
    gram = torch.einsum("...l,...li,...lj->...ij", share, wide_codes, wide_codes)
    gram = gram + REGULARISATION * torch.eye(basis.shape[-1], dtype=gram.dtype, device=gram.device)
    right = torch.einsum("...l,...li->...i", mean, wide_codes) + REGULARISATION * basis
    fitted: Tensor = torch.linalg.solve(gram, right)
    return fitted.to(basis.dtype)


class LqWeight(WeightQuantiser):
    """The nearest of 2^k levels of the output channel; `basis` has a row for each."""

    def __init__(self, weight: nn.Parameter, options: Options, name: str) -> None:
        super().__init__(weight, options, name)
        bits = options.source_bits
        rows = weight.detach().float().flatten(1)
        deviation = rows.square().mean(1, keepdim=True).sqrt()
        # A channel of zeros has no scale of its own.
        deviation = torch.where(deviation > 0, deviation, 1.0)
        basis = QUARTILE * deviation * 2.0 ** (torch.arange(bits, device=weight.device) - bits + 1)
        codes = binary_codes(bits, -1.0, weight.device)
        for _ in range(FIRST_ROUNDS):
            basis = self._round(rows, basis, codes)[1]
        self.basis: Tensor
        self.register_buffer("basis", basis)

    def forward(self, weight: Tensor) -> Tensor:
        codes = binary_codes(self.bound_bits(), -1.0, weight.device).to(self.basis.dtype)
        with torch.no_grad():
            quantised, fitted = self._round(wide(weight.detach()).flatten(1).to(codes.dtype), self.basis, codes)
        if self.training and torch.is_grad_enabled():
            self.basis.lerp_(fitted, 1.0 - KEPT)
        return straight_through(quantised.reshape(weight.shape).to(weight.dtype), weight)

    @staticmethod
    def _round(rows: Tensor, basis: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at their nearest levels, and the basis that fits them best with these codes."""
        levels, thresholds, codes = sorted_levels(basis, codes)
        places = torch.searchsorted(thresholds, rows)
        nothing = torch.zeros_like(levels)
        counts = nothing.scatter_add(1, places, torch.ones_like(rows))
        sums = nothing.scatter_add(1, places, rows)
        return levels.gather(1, places), fitted_basis(basis, codes, counts, sums)


class TakeLevels(torch.autograd.Function):
    """The level at each place; the gradient passes to x up to the highest level."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, levels: Tensor) -> Tensor:
        ctx.save_for_backward(x, levels)
        return levels[places]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, levels = ctx.saved_tensors
        return torch.where(x <= levels[-1], gradient, 0.0), None, None


class LqInput(ActivationQuantiser):
    """The nearest of 2^k levels, the lowest of which is 0."""

    def __init__(self, options: Options, name: str, device: torch.device) -> None:
        super().__init__(options, name, device)
        for bits in options.widths:
            self.register_buffer(f"basis_{bits}", torch.ones(bits, device=device))

    def forward(self, x: Tensor) -> Tensor:
        bits = self.bound_bits()
        self.zero_point(x)
        basis: Tensor = getattr(self, f"basis_{bits}")
        levels, thresholds, codes = sorted_levels(basis, binary_codes(bits, 0.0, x.device).to(basis.dtype))
        # Searching and counting run over values as they lie in memory.
        last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
        values = wide(x.permute(0, 2, 3, 1) if last else x.contiguous()).to(basis.dtype)
        places = torch.bucketize(values.detach(), thresholds, out_int32=True)
        result: Tensor = TakeLevels.apply(values, places, levels)  # type: ignore[no-untyped-call]
        if self.training and torch.is_grad_enabled():
            self._follow(values.detach().reshape(-1), places.reshape(-1), basis, codes)
        return (result.permute(0, 3, 1, 2) if last else result).to(x.dtype)

    @staticmethod
    def _follow(values: Tensor, places: Tensor, basis: Tensor, codes: Tensor) -> None:
        count = len(codes)
        counts = torch.bincount(places, minlength=count).double()
        sums = torch.bincount(places, values, minlength=count).double()
        both = distributed.total(torch.stack([counts, sums])).to(basis.device)
        basis.lerp_(fitted_basis(basis, codes, both[0], both[1]), 1.0 - KEPT)

    def initialise(self, bits: int, histogram: Histogram) -> int:
        refuse_negative(histogram, self.options, self.name)
        step, _ = choose_step(histogram, bits, self.options.activation_init, self.options.widths.index(bits))
        basis: Tensor = getattr(self, f"basis_{bits}")
        basis.copy_(step * 2.0 ** torch.arange(bits, device=basis.device))
        return 0


QUANTIZER = Quantizer("lq-nets", LqWeight, LqInput)
