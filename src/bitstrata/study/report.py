"""The report of a study: the paper's claims, tables and figures from our runs, as Markdown and as one web page."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from pathlib import Path

from bitstrata.atomic import write_atomically
from bitstrata.study import figures, paper, tables
from bitstrata.study.claims import claim_blocks
from bitstrata.study.document import Block, Document, Heading, Paragraph, Picture
from bitstrata.study.groups import Group, group_records
from bitstrata.study.markdown import PICTURES, as_markdown
from bitstrata.study.records import RunRecord
from bitstrata.study.webpage import as_webpage

_FIGURES: tuple[tuple[str, str, Callable[[Group], str | None], str], ...] = (
    (
        "Figure 5. Weight histograms",
        "weights",
        figures.weight_histograms,
        (
            "How many weights have which code. The paper's point: networks of their own spread their weights "
            "differently at each width, codes of a 4-bit network shifted down do not, and joint training finds "
            "weights that serve all widths."
        ),
    ),
    (
        "Figure 7 (a, b). The minimum-norm objective over training",
        "minimum-norm",
        figures.minimum_norm_traces,
        (
            "The paper's point: the weights vary much, the gradient of 2 bits is the largest, and its loss is "
            "preferred all the same."
        ),
    ),
    (
        "Figure 7 (c). Input quantisation error with and without self-distillation",
        "input-errors",
        figures.input_errors,
        "The paper's point: self-distillation makes the error of the last two layers much smaller.",
    ),
    (
        "Figure 8. Mixed precision",
        "mixed",
        figures.mixed_precision,
        "The paper's point: accuracy rises with the bits, and the uniform 3-bit network lies below the curve.",
    ),
)


def write_report(records: Sequence[RunRecord], folder: Path, *, title: str, about: str) -> None:
    """Writes report.md, the pictures it shows, and report.html, which stands alone, into a folder."""
    document = make_report(records, title=title, about=about)
    pictures = folder / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    for block in document.blocks:
        if isinstance(block, Picture):
            write_atomically(pictures / f"{block.name}.svg", block.svg.encode())
    write_atomically(folder / "report.md", as_markdown(document).encode())
    write_atomically(folder / "report.html", as_webpage(document).encode())


def make_report(records: Sequence[RunRecord], *, title: str, about: str) -> Document:
    """The report before it is written out."""
    groups = group_records(records)
    blocks: list[Block] = [Paragraph(text) for text in about.split("\n\n") if text.strip()]
    blocks += [Paragraph(_runs(group)) for group in groups] or [Paragraph("Nothing was run yet.")]
    blocks.append(
        Paragraph(
            "Our numbers are means over seeds with the sample standard deviation behind ±; accuracies are per cent "
            "of the test images; W/A is the width of weights and activations. The paper's numbers beside them are "
            "for other networks and data, named in the headings: compare how the rows differ, not the values."
        )
    )
    blocks += claim_blocks(groups)
    for table in paper.TABLES:
        blocks += tables.table_blocks(table, groups)
    blocks += tables.other_methods(groups)
    blocks += _pictures(groups)
    blocks += tables.time_blocks(groups)
    blocks += tables.diverged_blocks(groups)
    return Document(title, tuple(blocks))


def _runs(group: Group) -> str:
    records = [record for runs in group.runs.values() for record in runs.values()]
    seeds = sorted({record.seed for record in records})
    days = sorted({record.finished for record in records if record.finished})
    text = f"{group.name}: {_count(records, 'run')} of {_count(group.runs, 'method')}"
    text += f", {'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    if days:
        text += f", finished {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "")
    if group.replaced:
        text += f"; {group.replaced} earlier records of the same method and seed are not used"
    return text + "."


def _count(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _pictures(groups: Sequence[Group]) -> list[Block]:
    blocks: list[Block] = []
    for title, name, draw, caption in _FIGURES:
        drawn = [(index, svg) for index, group in enumerate(groups) if (svg := draw(group)) is not None]
        blocks.append(Heading(title))
        if not drawn:
            blocks.append(Paragraph("No run has recorded what it shows."))
        for index, svg in drawn:
            file = name if len(groups) == 1 else f"{name}-{index + 1}"
            blocks.append(Picture(file, svg, caption))
    return blocks
