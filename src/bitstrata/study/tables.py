"""Our results in the shape of the paper's tables, beside the paper's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from bitstrata.study.document import Block, Bullets, Column, Folded, Grid, Heading, Paragraph
from bitstrata.study.groups import DASH, Group, accuracy_cell, widths_of
from bitstrata.study.paper import LABELS, WIDTHS, Extra, Numbers, PaperBlock, PaperRow, PaperTable
from bitstrata.study.records import RunRecord

_EXTRA_NAMES: dict[Extra, str] = {
    "norm parameters": "norm parameters",
    "weight size": "weight size (bits)",
    "added parameters": "additional parameters",
}


def table_blocks(table: PaperTable, groups: Sequence[Group]) -> list[Block]:
    """A table of the paper: ours for every group that ran some of it, then the paper's other networks."""
    blocks: list[Block] = [Heading(f"Table {table.number}. {table.title}")]
    shown = 0
    for group in groups:
        grid = our_grid(table, group)
        if grid is None:
            continue
        shown += 1
        blocks += [Heading(f"{group.name}, beside the paper's {_where(table.blocks[0])}", level=3), grid]
    if not shown:
        first = table.blocks[0]
        blocks.append(Paragraph(f"None of its methods was run. The paper's numbers ({_where(first)}):"))
        blocks.append(paper_grid(table, first))
    if table.notes:
        blocks.append(Bullets(table.notes))
    if others := table.blocks[1:]:
        inner: list[Block] = []
        for block in others:
            inner += [Heading(_where(block), level=4), paper_grid(table, block)]
        blocks.append(Folded(f"The paper's other networks in table {table.number}", tuple(inner)))
    return blocks


def our_grid(table: PaperTable, group: Group) -> Grid | None:
    """The table of one group; rows without runs are left out, and a table without rows is None."""
    block = table.blocks[0]
    rows = [(row, group.of(row.method)) for row in block.rows]
    if table.extra == "weight size":
        rows += [(PaperRow(name, name), group.of(name)) for name in group.others]
    rows = [(row, records) for row, records in rows if records]
    if not rows:
        return None
    widths = widths_of([record for _, records in rows for record in records])
    kinds = ("top-1", "top-5") if table.has_top5 else ("top-1",)
    columns = [Column("method", text=True), Column("seeds")]
    if table.extra:
        columns += [Column("ours", _EXTRA_NAMES[table.extra]), Column("paper", _EXTRA_NAMES[table.extra], paper=True)]
    for kind in kinds:
        for width in widths:
            columns += [
                Column("ours", f"{kind} {width}/{width}"),
                Column("paper", f"{kind} {width}/{width}", paper=True),
            ]
    if table.has_vertical:
        columns.append(Column("vertical-layered"))
    lines = []
    if block.top1 is not None:
        lines.append(_float_line(table, block, group.of("float"), widths))
    lines += [_line(table, row, records, widths) for row, records in rows]
    return Grid(tuple(columns), tuple(lines))


def _line(table: PaperTable, row: PaperRow, records: Sequence[RunRecord], widths: Sequence[str]) -> tuple[str, ...]:
    cells = [row.label, str(len(records))]
    if table.extra:
        cells += [extra_cell(table.extra, records), row.extra.replace(" (", "\n(") or DASH]
    cells += _accuracy_cells(records, widths, row.top1, row.diverged, top5=False)
    if table.has_top5:
        cells += _accuracy_cells(records, widths, row.top5, row.diverged, top5=True)
    if table.has_vertical:
        cells.append(_tick(row.vertical))
    return tuple(cells)


def _accuracy_cells(
    records: Sequence[RunRecord], widths: Sequence[str], paper: Numbers, diverged: bool, *, top5: bool
) -> list[str]:
    printed = dict(zip(WIDTHS, paper, strict=True))
    cells = []
    for width in widths:
        theirs = "diverged" if diverged and width in WIDTHS else _number(printed.get(width))
        cells += [accuracy_cell(records, width, top5=top5), theirs]
    return cells


def _float_line(
    table: PaperTable, block: PaperBlock, records: Sequence[RunRecord], widths: Sequence[str]
) -> tuple[str, ...]:
    """The float network has one accuracy: it stands in the first column of its kind."""
    rest = [""] * (2 * (len(widths) - 1))
    cells = ["Float (no width)", str(len(records)) if records else DASH]
    cells += [accuracy_cell(records, "float"), _number(block.top1), *rest]
    if table.has_top5:
        cells += [accuracy_cell(records, "float", top5=True), _number(block.top5), *rest]
    if table.has_vertical:
        cells.append("")
    return tuple(cells)


def extra_cell(extra: Extra, records: Sequence[RunRecord]) -> str:
    """The column that is no accuracy, from the first record that has it: it does not depend on the seed."""
    for record in records:
        if extra == "weight size" and record.weight_bits:
            return f"{record.weight_bits / 1e6:,.2f}M"
        if extra == "norm parameters" and record.norm_parameters and record.parameters:
            return f"{record.norm_parameters:,}\n({1000 * record.norm_parameters / record.parameters:.1f}‰)"
        if extra == "added parameters" and record.added_parameters and record.quantised_weights:
            return f"{record.added_parameters:,}\n({100 * record.added_parameters / record.quantised_weights:.1f}%)"
    return DASH


def paper_grid(table: PaperTable, block: PaperBlock) -> Grid:
    """A block as the paper has it."""
    kinds = ("top-1", "top-5") if table.has_top5 else ("top-1",)
    columns = [Column("method", text=True)]
    if table.extra:
        columns.append(Column(_EXTRA_NAMES[table.extra]))
    columns += [Column(f"{width}/{width}", kind) for kind in kinds for width in WIDTHS]
    if table.has_vertical:
        columns.append(Column("vertical-layered"))
    lines = []
    if block.top1 is not None:
        ends = [[_number(value), "", ""] for value in (block.top1, block.top5)[: len(kinds)]]
        lines.append(("Float (no width)", *(cell for end in ends for cell in end), *([""] * table.has_vertical)))
    for row in block.rows:
        numbers = (*row.top1, *row.top5) if table.has_top5 else row.top1
        cells = [row.label, *([row.extra or DASH] if table.extra else [])]
        cells += ["diverged" if row.diverged else _number(value) for value in numbers]
        if row.diverged or any(value is not None for value in numbers):
            lines.append((*cells, *([_tick(row.vertical)] if table.has_vertical else [])))
    return Grid(tuple(columns), tuple(lines))


def other_methods(groups: Sequence[Group]) -> list[Block]:
    """Methods that the paper does not have; nothing where there are none."""
    blocks: list[Block] = []
    for group in groups:
        runs = [(name, group.of(name)) for name in group.others]
        if not runs:
            continue
        widths = widths_of([record for _, records in runs for record in records])
        columns = [Column("method", text=True), Column("seeds"), Column("weight size (bits)")]
        columns += [Column(f"{width}/{width}", kind) for kind in ("top-1", "top-5") for width in widths]
        lines = [
            (
                name,
                str(len(records)),
                extra_cell("weight size", records),
                *(accuracy_cell(records, width) for width in widths),
                *(accuracy_cell(records, width, top5=True) for width in widths),
            )
            for name, records in runs
        ]
        blocks += [Heading(group.name, level=3), Grid(tuple(columns), tuple(lines))]
    return [Heading("Other methods"), *blocks] if blocks else []


def time_blocks(groups: Sequence[Group]) -> list[Block]:
    """Wall and CPU time of every kind of run."""
    blocks: list[Block] = [Heading("Time")]
    columns = (Column("run", text=True), Column("seeds"), Column("wall time"), Column("CPU time"))
    for group in groups:
        lines = []
        wall_total = cpu_total = 0.0
        for method in [*(name for name in LABELS if name in group.runs), *group.others]:
            records = group.of(method)
            wall, cpu = (fmean(one.seconds for one in records), fmean(one.cpu_seconds for one in records))
            wall_total, cpu_total = wall_total + wall, cpu_total + cpu
            lines.append((method, str(len(records)), duration(wall), duration(cpu)))
        lines.append(("all of them: one full seed", "", duration(wall_total), duration(cpu_total)))
        runs = [record for records in group.runs.values() for record in records.values()]
        spent = (duration(sum(one.seconds for one in runs)), duration(sum(one.cpu_seconds for one in runs)))
        lines.append(("everything that was run", "", *spent))
        blocks += [Heading(group.name, level=3), Grid(columns, tuple(lines))]
    blocks.append(
        Paragraph(
            "Training and measuring, as recorded with each run; means over the seeds, one line for each kind of run."
        )
    )
    return blocks


def diverged_blocks(groups: Sequence[Group]) -> list[Block]:
    """Every run that diverged, with what happened in it."""
    columns = (
        Column("network and data", text=True),
        Column("method", text=True),
        Column("seed"),
        Column("why", text=True),
    )
    lines = [
        (group.name, method, str(seed), record.reason or "not recorded")
        for group in groups
        for method, records in sorted(group.runs.items())
        for seed, record in sorted(records.items())
        if record.status == "diverged"
    ]
    return [Heading("Runs that diverged"), Grid(columns, tuple(lines))] if lines else []


def duration(seconds: float) -> str:
    """In the largest unit that leaves a number of at least one."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def _where(block: PaperBlock) -> str:
    return f"{block.network} on {block.data}"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.1f}"


def _tick(vertical: bool) -> str:
    return "yes" if vertical else "no"
