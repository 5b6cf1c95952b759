"""What cannot be captured is refused by an error that names the module and the op."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture.parity import prepared
from families import FAMILIES
from torch import Tensor, nn
from torch.nn import functional

from bitstrata.capture import capture
from bitstrata.errors import BadInput, CannotCapture, NotCalibrated
from bitstrata.training.stratify import stratify


class Block(nn.Module):
    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.body = body
        self.active = False
        self.gamma = nn.Parameter(torch.ones(9))
        self.matrix = nn.Parameter(torch.ones(4, 3, 1, 1))

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x) if self.active else x


def refused(body: Callable[[Any, Tensor], Any] | nn.Module) -> str:
    block = body if isinstance(body, nn.Module) else Block(body)
    model = nn.Sequential(
        nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Sequential(nn.Identity(), block), nn.Conv2d(3, 3, 1)
    )
    net = prepared(model, (2, 3, 9, 9), (2,), activation_init="lsq")
    block.active = True  # only now: not all of this runs on tensors either
    with pytest.raises(CannotCapture) as caught:
        capture(net, torch.empty(2, 3, 9, 9))
    return str(caught.value)


REFUSED: dict[str, tuple[Callable[[Any, Tensor], Any] | nn.Module, str]] = {
    "group norm": (nn.GroupNorm(1, 3), "'2.1' (GroupNorm) computes 'group_norm'"),
    "gelu": (nn.GELU(), "'2.1' (GELU) computes 'gelu'"),
    "softmax": (lambda m, x: x.softmax(1), "'2.1' (Block) computes 'softmax'"),
    "interpolate": (nn.Upsample(scale_factor=1), "'2.1' (Upsample) computes 'interpolate'"),
    "permute": (lambda m, x: x.permute(0, 1, 3, 2), "computes 'permute'"),
    "property": (lambda m, x: x.mT, "computes 'mT'"),
    "matmul": (lambda m, x: x @ x, "computes 'matmul'"),
    "power": (lambda m, x: x**2, "computes 'pow'"),
    "quotient": (lambda m, x: x / (x * x + 1), "divides by a value"),
    "reciprocal": (lambda m, x: 1 / (x.sigmoid() + 1), "computes 'reciprocal'"),
    "leaky": (nn.LeakyReLU(), "computes 'leaky_relu'"),
    "other limits": (lambda m, x: x.clamp(-1, 1), "-1 .. 1"),
    "random": (lambda m, x: functional.dropout(x, 0.1), "training=self.training"),
    "batch statistics": (nn.BatchNorm2d(3, track_running_stats=False), "'2.1' (BatchNorm2d) normalises by the batch"),
    "free weight": (lambda m, x: functional.conv2d(x, m.matrix)[:, :3], "computes 'conv2d'"),
    "constant along the width": (lambda m, x: x * m.gamma, "'2.1.gamma' of shape (9,)"),
    "control flow": (lambda m, x: x if x.sum() > 0 else -x, "computes 'sum'"),
    "truth": (lambda m, x: x if x.mean((2, 3)) else -x, "by the values of a tensor"),
    "number": (lambda m, x: x * float(x.amax((2, 3))), "by the values of a tensor"),
    "size compared": (lambda m, x: x if x.shape[2] > 5 else -x, "would freeze it"),
    "sizes compared": (lambda m, x: x if x.shape[2] == x.shape[3] else -x, "it depends"),
    "size as a number": (lambda m, x: x * float(x.shape[2]), "would freeze it"),
    "size in a tensor": (lambda m, x: x + torch.ones(3, 1, 1) * x.shape[2], "would freeze it"),
    "size of a tensor": (lambda m, x: x + torch.zeros(x.shape), "would freeze it"),
    "loop over rows": (lambda m, x: next(x for _ in range(x.shape[2])), "would freeze it"),
    "padding by size": (lambda m, x: functional.pad(x, (0, x.shape[3] % 2)), "depends on the size of the input"),
    "fixed batch": (lambda m, x: x.view(2, -1), "fixes the batch to 2"),
    "mixed samples": (lambda m, x: x.view(-1, 3, 9, 3), "not the batch"),
    "part of the batch": (lambda m, x: x[:1], "part of the batch"),
    "batch in turn": (lambda m, x: torch.cat(list(x)), "samples of a batch"),
    "batch as a dimension": (lambda m, x: x.mean((2, 3)).unsqueeze(0).unsqueeze(0).relu(), "not the batch"),
    "three dimensions": (lambda m, x: x.flatten(2).relu(), "3 dimensions"),
    "expanded": (lambda m, x: x.mean((2, 3), True).expand_as(x) + x, "in products only"),
    "expanded and flattened": (lambda m, x: x.mean((2, 3), True).expand_as(x).flatten(1), "in products only"),
    "mean of channels": (lambda m, x: x.mean(1, keepdim=True), "height and width only"),
    "concatenated rows": (lambda m, x: torch.cat([x, x], 2), "axis 2"),
    "split rows": (lambda m, x: x.chunk(2, 2)[0], "'chunk' along an axis whose size depends"),
    "indexed": (lambda m, x: x[:, [0, 1, 2]], "indexing by a tensor"),
    "assigned": (lambda m, x: x.__setitem__((slice(None), 0), 0.0), "assignment"),
    "spatial attention": (lambda m, x: x * x[:, :1], "equal batch and channels"),
    "broadcast sum": (lambda m, x: x + x.mean((2, 3), True), "two equal shapes"),
    "double": (lambda m, x: x.to(torch.float64), "computes in torch.float64"),
    "constant result": (lambda m, x: torch.ones(1, 3, 9, 9), "a constant tensor of shape (1, 3, 9, 9)"),
    "indices": (lambda m, x: functional.max_pool2d(x, 2, return_indices=True), "computes 'max_pool2d_with_indices'"),
    "other bits": (lambda m, x: x.view(torch.int32), "as another type"),
    "other arguments": (lambda m, x: x.relu(out=x), "in a form that a device does not run"),
    "changed under a view": (lambda m, x: _changed_under_a_view(x), "changed in place"),
}


def _changed_under_a_view(x: Tensor) -> Tensor:
    head = x[:, :1]
    x.relu_()
    return torch.cat([x, head], 1)[:, :3]


@pytest.mark.parametrize("name", REFUSED)
def test_ops_outside_the_list(name: str) -> None:
    body, message = REFUSED[name]
    found = refused(body)
    assert message in found
    assert "'2.1' " in found or "'3' (Conv2d)" in found


@pytest.mark.parametrize(
    ("family", "message"),
    [("convnext", r"'stem.1' \(LayerNorm2d\) computes 'permute'"), ("vision_transformer", "computes 'transpose'")],
)
def test_families_for_later(family: str, message: str) -> None:
    net = prepared(FAMILIES[family](), (2, 3, 32, 32))
    with pytest.raises(CannotCapture, match=message):
        capture(net, torch.empty(2, 3, 32, 32))


def test_not_calibrated() -> None:
    net = stratify(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)))
    with pytest.raises(NotCalibrated, match=r"'1'.*2 bits"):
        capture(net, torch.empty(1, 3, 4, 4))


def test_without_compensation() -> None:
    net = prepared(nn.Conv2d(3, 3, 1), (1, 3, 4, 4), ends="quantised", compensated=False)
    with pytest.raises(CannotCapture, match="compensated=False"):
        capture(net, torch.empty(1, 3, 4, 4))


def test_two_inputs() -> None:
    class Two(nn.Sequential):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:  # type: ignore[override]
            out: Tensor = super().forward(x + y)
            return out

    net = stratify(Two(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)), ends="quantised")
    net.train()(torch.randn(1, 3, 4, 4), torch.randn(1, 3, 4, 4))
    with pytest.raises(CannotCapture, match="takes the inputs x, y"):
        capture(net, torch.empty(1, 3, 4, 4))


def test_results_that_are_no_tensors() -> None:
    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Any:
            return self.conv(x), "label"

    net = prepared(Labelled(), (1, 3, 4, 4), ends="quantised")
    with pytest.raises(CannotCapture, match="returns a str"):
        capture(net, torch.empty(1, 3, 4, 4))


@pytest.mark.parametrize("shape", [(3, 4, 4), (4,), (0, 3, 4, 4)])
def test_examples_of_no_use(shape: tuple[int, ...]) -> None:
    net = prepared(nn.Conv2d(3, 3, 1), (1, 3, 4, 4), ends="quantised")
    with pytest.raises(BadInput, match="example"):
        capture(net, torch.empty(shape))


def test_code_that_depends_on_the_width() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.conv = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(self.stem(x))
            return out.relu() if self.conv.bits == 2 else out

    net = prepared(Several(), (1, 3, 4, 4), quantise=["conv"])
    with pytest.raises(CannotCapture, match="at 2 bits"):
        capture(net, torch.empty(1, 3, 4, 4))
