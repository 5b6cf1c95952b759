"""The paper's own numbers: tables 1 to 9, row by row, under the names that the methods have in a study.

Percentages stand for 2, 3 and 4 bits, in this order; None where the paper has a dash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WIDTHS = ("2", "3", "4")

Numbers = tuple[float | None, float | None, float | None]
Extra = Literal["", "norm parameters", "weight size", "added parameters"]
NOTHING: Numbers = (None, None, None)


@dataclass(frozen=True)
class PaperRow:
    """One line of a table."""

    method: str
    """The method of a study that does the same."""
    label: str
    top1: Numbers = NOTHING
    top5: Numbers = NOTHING
    extra: str = ""
    """What the paper has in the column of the table's `extra`, as printed."""
    vertical: bool = False
    """Whether one copy of the weights gives every width."""
    diverged: bool = False


@dataclass(frozen=True)
class PaperBlock:
    """The lines of one network."""

    network: str
    data: str
    rows: tuple[PaperRow, ...]
    top1: float | None = None
    """Of the float network."""
    top5: float | None = None


@dataclass(frozen=True)
class PaperTable:
    """A table; the first block is the one that ours stands beside."""

    number: int
    title: str
    blocks: tuple[PaperBlock, ...]
    has_top5: bool = False
    extra: Extra = ""
    has_vertical: bool = False
    notes: tuple[str, ...] = ()
    """What one must know to read it, and errors that its own numbers show."""


RESNET18, RESNET34, RESNET50 = "ResNet-18", "ResNet-34", "ResNet-50"
MOBILENET, VGG = "MobileNetV2", "VGG-16 BN"
IMAGENET, CIFAR100 = "ImageNet", "CIFAR-100"

_JOINT = "Joint, no self-distillation"
_COSINE = "Joint, cosine self-distillation"


def _joint(*top1: float, top5: Numbers = NOTHING, extra: str = "", label: str = _JOINT) -> PaperRow:
    return PaperRow("joint", label, (top1[0], top1[1], top1[2]), top5, extra, vertical=True)


def _cosine(*top1: float, top5: Numbers = NOTHING, extra: str = "", label: str = _COSINE) -> PaperRow:
    return PaperRow("joint-cosine", label, (top1[0], top1[1], top1[2]), top5, extra, vertical=True)


BASELINES = PaperTable(
    1,
    "Baselines: how a vertical-layered network could be trained",
    (
        PaperBlock(
            RESNET18,
            IMAGENET,
            (
                PaperRow("lsq", "LSQ, one network for each width", (66.5, 69.4, 70.5)),
                PaperRow("ascending", "Ascending layer training", (66.5, 67.9, 68.4), vertical=True),
                PaperRow("co-training", "Multi-layer co-training", vertical=True, diverged=True),
            ),
        ),
    ),
)

SMALL_IMAGES = PaperTable(
    2,
    "Quantisation methods on small images",
    (
        PaperBlock(
            RESNET18,
            CIFAR100,
            (
                PaperRow("lq-nets", "LQ-Nets", (70.8, 72.9, None)),
                PaperRow("lqw", "LQW", (65.1, 73.0, None)),
                PaperRow("diffq", "DiffQ", (66.6, 76.7, 77.5)),
                PaperRow("lsq", "LSQ", (76.9, 77.7, 77.8)),
                _joint(76.3, 77.8, 78.3),
                PaperRow("joint-cosine", _COSINE, vertical=True),
            ),
        ),
    ),
    has_vertical=True,
    notes=(
        (
            "The paper has one row of its own here and does not say whether it is with self-distillation; its numbers"
            " stand beside the joint network without."
        ),
        "The paper took LQ-Nets, LQW and DiffQ from the DiffQ paper.",
    ),
)

LARGE_IMAGES = PaperTable(
    3,
    "Quantisation methods, top-1 and top-5",
    (
        PaperBlock(
            RESNET18,
            IMAGENET,
            (
                PaperRow("pact", "PACT", (64.4, 68.1, 69.2), (85.6, 88.2, 89.0)),
                PaperRow("lq-nets", "LQ-Nets", (64.9, 68.2, 69.3), (85.9, 87.9, 88.8)),
                PaperRow("dsq", "DSQ", (65.2, 68.7, 69.6)),
                PaperRow("qil", "QIL", (65.7, 69.2, 70.4)),
                PaperRow("lsq", "LSQ", (66.5, 69.4, 70.5), (87.0, 88.9, 89.5)),
                _joint(66.7, 69.9, 70.6, top5=(87.3, 89.1, 89.5)),
                _cosine(67.1, 70.1, 70.6, top5=(87.2, 89.1, 89.5)),
            ),
            70.5,
            89.6,
        ),
        PaperBlock(
            RESNET34,
            IMAGENET,
            (
                PaperRow("lq-nets", "LQ-Nets", (69.8, 71.9, None), (89.1, 90.2, None)),
                PaperRow("dsq", "DSQ", (70.0, 72.5, 72.8)),
                PaperRow("qil", "QIL", (70.6, 73.1, 73.7)),
                PaperRow("lsq", "LSQ", (71.1, 73.6, 74.1), (90.0, 91.5, 91.6)),
                _joint(70.7, 73.3, 73.9, top5=(89.8, 91.3, 91.6)),
                _cosine(71.2, 73.5, 74.0, top5=(89.8, 91.3, 91.5)),
            ),
            74.1,
            92.8,
        ),
        PaperBlock(
            RESNET50,
            IMAGENET,
            (
                PaperRow("pact", "PACT", (72.2, 75.3, 76.5)),
                PaperRow("lq-nets", "LQ-Nets", (71.5, 74.2, 75.1), (90.3, 91.6, 92.4)),
                PaperRow("lsq", "LSQ", (73.2, 75.8, 76.8), (91.3, 92.6, 93.0)),
                _joint(72.4, 75.9, 76.8, top5=(90.9, 92.7, 93.0)),
                _cosine(73.2, 76.1, 76.8, top5=(91.1, 92.8, 93.1)),
            ),
            76.9,
            93.4,
        ),
        PaperBlock(
            MOBILENET,
            IMAGENET,
            (
                PaperRow("pact", "PACT", (None, None, 61.4), (None, None, 83.7)),
                PaperRow("lsq", "LSQ", (46.7, None, 66.3)),
                _joint(47.4, 64.3, 67.1, top5=(72.5, 85.5, 87.8)),
                _cosine(50.6, 65.0, 67.5, top5=(75.3, 86.0, 87.8)),
            ),
            71.9,
            91.3,
        ),
        PaperBlock(
            VGG,
            IMAGENET,
            (
                PaperRow("lsq", "LSQ", (71.4, 73.4, 74.0), (90.4, 91.5, 92.0)),
                _joint(70.9, 73.0, 73.4, top5=(90.1, 91.3, 91.6)),
                _cosine(71.0, 73.3, 73.4, top5=(89.9, 91.2, 91.4)),
            ),
            73.4,
            91.5,
        ),
    ),
    has_top5=True,
    has_vertical=True,
    notes=(
        (
            "The paper took PACT, LQ-Nets, DSQ and QIL, and LSQ of VGG-16 BN, from their own papers and LSQ of "
            "MobileNetV2 from MQBench: other recipes than its own."
        ),
        (
            "Noticed: the paper's text gives the lead over LSQ as 0.6 and 0.9 points for ResNet-18 at 2 and 3 bits, "
            "and as 0.4 and 0.9 for MobileNetV2 at 2 and 4 bits; its table gives 0.6 and 0.7, and 3.9 and 1.2 (with "
            "self-distillation; without it 0.2 and 0.5, and 0.7 and 0.8)."
        ),
        (
            "Noticed: the text says that self-distillation adds 0.1 to 0.5 points; the table has from 0.0 (ResNet-18,"
            " ResNet-50 and VGG-16 BN at 4 bits) to 0.8 (ResNet-50 at 2 bits) and 3.2 (MobileNetV2 at 2 bits)."
        ),
        (
            "Noticed: 92.8 as top-5 of the float ResNet-34 lies 1.2 points above the 4-bit LSQ network with the same "
            "top-1; for ResNet-18 and ResNet-50 the float network's lead is 0.1 and 0.4. It is probably 91.8."
        ),
    ),
)

NORMS = PaperTable(
    4,
    "What the widths share of the norms",
    (
        PaperBlock(
            RESNET18,
            IMAGENET,
            (
                PaperRow(
                    "norms-shared",
                    "Shared norms",
                    (33.5, 67.4, 49.3),
                    (58.0, 87.8, 74.1),
                    "0.19M (1.6‰)",
                    vertical=True,
                ),
                PaperRow(
                    "norms-statistics",
                    "Individual statistics",
                    (66.6, 68.8, 69.2),
                    (86.9, 88.6, 88.8),
                    "0.38M (3.3‰)",
                    vertical=True,
                ),
                _joint(
                    66.7,
                    69.9,
                    70.6,
                    top5=(87.3, 89.1, 89.5),
                    extra="0.58M (4.9‰)",
                    label="Individual statistics and affine",
                ),
            ),
        ),
        PaperBlock(
            RESNET34,
            IMAGENET,
            (
                PaperRow(
                    "norms-shared",
                    "Shared norms",
                    (56.2, 72.2, 41.1),
                    (79.7, 90.8, 66.6),
                    "0.34M (1.5‰)",
                    vertical=True,
                ),
                PaperRow(
                    "norms-statistics",
                    "Individual statistics",
                    (70.7, 72.7, 73.0),
                    (89.8, 91.0, 91.3),
                    "0.68M (3.0‰)",
                    vertical=True,
                ),
                _joint(
                    70.7,
                    73.3,
                    73.9,
                    top5=(89.8, 91.3, 91.6),
                    extra="1.02M (4.5‰)",
                    label="Individual statistics and affine",
                ),
            ),
        ),
    ),
    has_top5=True,
    extra="norm parameters",
    notes=(
        (
            "Norm parameters are affine parameters and statistics at all widths; the share is of the float network's "
            "parameters."
        ),
        (
            "Noticed: the paper's counts in millions are ten times too large. ResNet-18's norms have 4,800 channels "
            "with 4 numbers each, which is 0.0192 M and not 0.19 M; ResNet-34's have 8,512, which is 0.034 M. The "
            "shares of ResNet-18 are right (19,200 of 11.69 M are 1.6‰); those of ResNet-34 should be 1.6, 3.1 and "
            "4.7‰. Ours are counted."
        ),
    ),
)

SCALABLE = PaperTable(
    5,
    "One model for every width: accuracy and what a server stores",
    (
        PaperBlock(
            RESNET50,
            IMAGENET,
            (
                PaperRow("ascending", "Ascending layer training", (73.2, 73.6, 73.9), extra="159.6M", vertical=True),
                PaperRow("qat-finetune", "QAT + fine-tuning", (60.1, 73.4, 76.8), extra="159.6M", vertical=True),
                PaperRow("adabits", "AdaBits", (73.2, 75.8, 76.1), extra="816.1M"),
                _joint(72.4, 75.9, 76.8, extra="159.6M"),
                _cosine(73.2, 76.1, 76.8, extra="159.6M"),
            ),
        ),
    ),
    extra="weight size",
    notes=(
        (
            "The weight size is in bits: quantised weights at their stored width, the others at 32 bits. AdaBits "
            "keeps all weights in float. The paper took its AdaBits row from the AdaBits paper."
        ),
        (
            "Noticed: the text says that joint training is better than the two naive methods at all widths; by the "
            "table ascending training is level with it at 2 bits (73.2; without self-distillation joint training has "
            "72.4), and QAT + fine-tuning is level at 4 bits."
        ),
    ),
)

OBJECTIVES = PaperTable(
    6,
    "How the losses of the widths are combined",
    (
        PaperBlock(
            RESNET18,
            IMAGENET,
            (
                _joint(66.7, 69.9, 70.6, top5=(87.3, 89.1, 89.5), label="Mean (unitary scalarisation)"),
                PaperRow(
                    "minimum-norm",
                    "Minimum norm (multi-gradient descent)",
                    (66.8, 69.3, 69.8),
                    (87.3, 88.7, 89.0),
                    vertical=True,
                ),
            ),
        ),
        PaperBlock(
            RESNET34,
            IMAGENET,
            (
                _joint(70.7, 73.3, 73.9, top5=(89.8, 91.3, 91.6), label="Mean (unitary scalarisation)"),
                PaperRow(
                    "minimum-norm",
                    "Minimum norm (multi-gradient descent)",
                    (70.9, 72.8, 73.0),
                    (89.9, 91.1, 91.2),
                    vertical=True,
                ),
            ),
        ),
    ),
    has_top5=True,
)

COMPENSATION = PaperTable(
    7,
    "The positive compensation",
    (
        PaperBlock(
            RESNET18,
            IMAGENET,
            (
                PaperRow("no-compensation", "Without compensation", (61.3, 67.4, 70.5), vertical=True),
                _joint(66.7, 69.9, 70.6, label="With compensation"),
            ),
        ),
        PaperBlock(
            MOBILENET,
            IMAGENET,
            (
                PaperRow("no-compensation", "Without compensation", (40.4, 57.5, 63.6), vertical=True),
                _joint(50.6, 65.0, 67.5, label="With compensation"),
            ),
        ),
    ),
    notes=(
        (
            "Noticed: the paper's row of MobileNetV2 with compensation is the one with self-distillation of its table"
            " 3, that of ResNet-18 the one without; whether MobileNetV2 without compensation had self-distillation is"
            " not said."
        ),
    ),
)

OWN_ENDS = PaperTable(
    8,
    "First and last layers: one copy, or one for each width",
    (
        PaperBlock(
            RESNET18,
            IMAGENET,
            (
                _joint(66.7, 69.9, 70.6, top5=(87.3, 89.1, 89.5), label="One shared copy"),
                PaperRow(
                    "own-ends",
                    "One for each width",
                    (66.9, 70.0, 70.5),
                    (87.3, 89.3, 89.4),
                    "1.04M (9.4%)",
                    vertical=True,
                ),
            ),
        ),
        PaperBlock(
            RESNET50,
            IMAGENET,
            (
                _joint(72.4, 75.9, 76.8, top5=(90.9, 92.7, 93.0), label="One shared copy"),
                PaperRow(
                    "own-ends",
                    "One for each width",
                    (71.0, 74.8, 75.8),
                    (90.3, 92.3, 92.7),
                    "4.12M (17.6%)",
                    vertical=True,
                ),
            ),
        ),
    ),
    has_top5=True,
    extra="added parameters",
    notes=(
        (
            "The share is of the quantised weights, as the paper's numbers show; of all parameters ResNet-18's would "
            "be 8.9 % and ResNet-50's 16.1 %."
        ),
    ),
)

DISTILLATION = PaperTable(
    9,
    "Self-distillation",
    (
        PaperBlock(
            RESNET18,
            IMAGENET,
            (
                _joint(66.7, 69.9, 70.6, label="None"),
                PaperRow("joint-kl", "Kullback-Leibler divergence", (66.7, 69.9, 70.4), vertical=True),
                _cosine(67.1, 70.1, 70.6, label="Cosine similarity"),
            ),
        ),
        PaperBlock(
            RESNET50,
            IMAGENET,
            (
                _joint(72.4, 75.9, 76.8, label="None"),
                PaperRow("joint-kl", "Kullback-Leibler divergence", (72.1, 75.8, 76.8), vertical=True),
                _cosine(73.2, 76.1, 76.8, label="Cosine similarity"),
            ),
        ),
    ),
)

TABLES = (
    BASELINES,
    SMALL_IMAGES,
    LARGE_IMAGES,
    NORMS,
    SCALABLE,
    OBJECTIVES,
    COMPENSATION,
    OWN_ENDS,
    DISTILLATION,
)

#: Every method that some table or claim of the paper speaks of, under a name for people.
LABELS = {
    "float": "Float",
    "lsq": "LSQ, one network for each width",
    "joint": _JOINT,
    "joint-cosine": _COSINE,
    "joint-kl": "Joint, KL self-distillation",
    "ascending": "Ascending layer training",
    "co-training": "Multi-layer co-training",
    "qat-finetune": "QAT + fine-tuning",
    "adabits": "AdaBits",
    "pact": "PACT",
    "lq-nets": "LQ-Nets",
    "dsq": "DSQ",
    "qil": "QIL",
    "lqw": "LQW",
    "diffq": "DiffQ",
    "norms-shared": "Shared norms",
    "norms-statistics": "Individual statistics, shared affine",
    "no-compensation": "Without compensation",
    "minimum-norm": "Minimum-norm objective",
    "own-ends": "Own first and last layers",
    "mixed": "Mixed precision",
}
