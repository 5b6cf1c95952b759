"""Our tables: cells, rows, and the paper's numbers in the right places."""

from statistics import mean, stdev

import pytest
from study.constructed import full_study, record, runs

from bitstrata.study import paper
from bitstrata.study.document import Folded, Grid, Heading, Paragraph
from bitstrata.study.groups import DASH, Group, accuracy_cell, data_name, group_records, mean_and_spread, widths_of
from bitstrata.study.records import RunRecord
from bitstrata.study.tables import (
    diverged_blocks,
    duration,
    other_methods,
    our_grid,
    paper_grid,
    table_blocks,
    time_blocks,
)


def one_group(records: list[RunRecord]) -> Group:
    (group,) = group_records(records)
    return group


def lines(grid: Grid | None) -> dict[str, dict[str, str]]:
    """By method, then by column: `top-1 2/2 ours`."""
    assert grid is not None
    names = [f"{column.group} {column.name}".strip() for column in grid.columns]
    assert len(set(names)) == len(names)
    return {row[0]: dict(zip(names, row, strict=True)) for row in grid.rows}


def test_mean_and_sample_standard_deviation() -> None:
    values = [60.0, 61.0, 64.0]
    assert mean_and_spread(values) == f"{mean(values):.1f} ± {stdev(values):.1f}" == "61.7 ± 2.1"
    assert mean_and_spread([60.04]) == "60.0"
    assert mean_and_spread([]) == DASH


def test_cells_of_diverged_runs() -> None:
    some = [record("joint", 0, (60.0, 68.0)), record("joint", 1, (62.0,), status="diverged")]
    assert accuracy_cell(some, "2") == "61.0 ± 1.4"
    assert accuracy_cell(some, "3") == "68.0,\ndiverged (1 of 2)"
    assert accuracy_cell(some, "4") == "diverged (1 of 2)"
    assert accuracy_cell(some[:1], "4") == DASH
    assert accuracy_cell(some, "2", top5=True) == "80.5 ± 0.7"


def test_ours_stand_beside_the_same_rows_of_the_paper() -> None:
    found = lines(our_grid(paper.LARGE_IMAGES, one_group(runs("lsq", (1.0, 2.0, 3.0), (1.0, 2.0, 3.0)))))
    assert set(found) == {"Float (no width)", "LSQ"}
    row = found["LSQ"]
    assert row["seeds"] == "2"
    assert (row["top-1 2/2 ours"], row["top-1 2/2 paper"]) == ("1.0 ± 0.0", "66.5")
    assert (row["top-5 4/4 ours"], row["top-5 4/4 paper"]) == ("51.5 ± 0.0", "89.5")
    assert row["vertical-layered"] == "no"
    assert found["Float (no width)"]["top-5 2/2 paper"] == "89.6"


def test_extra_columns() -> None:
    group = one_group(full_study())
    norms = lines(our_grid(paper.NORMS, group))
    assert norms["Shared norms"]["norm parameters ours"] == "896\n(11.5‰)"
    assert norms["Shared norms"]["norm parameters paper"] == "0.19M\n(1.6‰)"
    sizes = lines(our_grid(paper.SCALABLE, group))
    assert sizes["AdaBits"]["weight size (bits) ours"] == "2.45M"
    assert sizes["own <idea> | 1"]["weight size (bits) paper"] == DASH
    ends = lines(our_grid(paper.OWN_ENDS, group))
    assert ends["One for each width"]["additional parameters ours"] == "2,164\n(2.8%)"
    assert ends["One shared copy"]["additional parameters ours"] == DASH


def test_every_row_of_the_paper_has_ours_after_a_full_study() -> None:
    group = one_group(full_study())
    for table in paper.TABLES:
        found = lines(our_grid(table, group))
        assert {row.label for row in table.blocks[0].rows} <= found.keys()
        assert all(DASH not in line["seeds"] for line in found.values())


def test_other_widths_have_columns_without_paper() -> None:
    found = lines(our_grid(paper.BASELINES, one_group([record("lsq", 0, {"2": 50.0, "8": 60.0, "float": 1.0})])))
    row = found["LSQ, one network for each width"]
    assert (row["top-1 8/8 ours"], row["top-1 8/8 paper"], row["top-1 2/2 paper"]) == ("60.0", DASH, "66.5")
    assert "top-1 3/3 ours" not in row


def test_co_training_diverged_in_both() -> None:
    group = one_group([record("co-training", seed, (), status="diverged") for seed in range(3)])
    row = lines(our_grid(paper.BASELINES, group))["Multi-layer co-training"]
    assert (row["top-1 3/3 ours"], row["top-1 3/3 paper"]) == ("diverged (3 of 3)", "diverged")


def test_tables_that_were_not_run_show_the_paper() -> None:
    group = one_group(runs("lsq", (1.0, 2.0, 3.0)))
    assert our_grid(paper.NORMS, group) is None
    blocks = table_blocks(paper.NORMS, [group])
    assert any(isinstance(block, Paragraph) and "None of its methods was run" in block.text for block in blocks)
    assert paper_grid(paper.NORMS, paper.NORMS.blocks[0]) in blocks


def test_one_part_for_each_network_and_data_set() -> None:
    records = [*runs("lsq", (1.0, 2.0, 3.0)), *runs("lsq", (4.0, 5.0, 6.0), net="resnet20", data="digits")]
    blocks = table_blocks(paper.LARGE_IMAGES, group_records(records))
    parts = [block.text for block in blocks if isinstance(block, Heading) and block.level == 3]
    assert [text.partition(",")[0] for text in parts] == ["resnet8 on cifar10", "resnet20 on digits"]
    assert all("ResNet-18 on ImageNet" in text for text in parts)
    (folded,) = [block for block in blocks if isinstance(block, Folded)]
    networks = [block.text for block in folded.blocks if isinstance(block, Heading)]
    assert [name.partition(" on ")[0] for name in networks] == ["ResNet-34", "ResNet-50", "MobileNetV2", "VGG-16 BN"]


def test_the_paper_block_is_whole() -> None:
    grid = paper_grid(paper.LARGE_IMAGES, paper.LARGE_IMAGES.blocks[3])
    assert grid.rows[2] == ("LSQ", "46.7", DASH, "66.3", DASH, DASH, DASH, "no")


def test_later_records_replace_earlier_ones() -> None:
    group = one_group([record("lsq", 0, (1.0,)), record("lsq", 1, (5.0,)), record("lsq", 0, (9.0,))])
    assert accuracy_cell(group.of("lsq"), "2") == "7.0 ± 2.8"
    assert group.replaced == 1


def test_other_methods_appear_twice_and_nowhere_else() -> None:
    group = one_group(full_study())
    blocks = other_methods([group])
    grid = next(block for block in blocks if isinstance(block, Grid))
    assert [row[0] for row in grid.rows] == ["own <idea> | 1"]
    tables = [table.number for table in paper.TABLES if "own <idea> | 1" in lines(our_grid(table, group))]
    assert tables == [5]
    assert other_methods([one_group(runs("lsq", (1.0, 2.0, 3.0)))]) == []


def test_time() -> None:
    records = [
        record("lsq", 0, (1.0,), seconds=100.0, cpu_seconds=150.0),
        record("lsq", 1, (1.0,), seconds=140.0, cpu_seconds=210.0),
        record("joint", 0, (1.0,), seconds=3600.0, cpu_seconds=7200.0),
    ]
    grid = next(block for block in time_blocks(group_records(records)) if isinstance(block, Grid))
    assert ("lsq", "2", "2.0 min", "3.0 min") in grid.rows
    assert grid.rows[-2] == ("all of them: one full seed", "", "1.0 h", "2.0 h")
    assert grid.rows[-1][2] == duration(3840)


def test_diverged_runs_are_listed_with_their_reason() -> None:
    grid = next(block for block in diverged_blocks(group_records(full_study())) if isinstance(block, Grid))
    assert ("resnet8 on cifar10", "co-training", "2", "loss of 4 bits, step 12") in grid.rows
    assert diverged_blocks(group_records(runs("lsq", (1.0,)))) == []


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("cifar10:/home/someone/data", "cifar10"),
        ("digits", "digits"),
        ("folder:/data/flowers?size=64", "folder flowers"),
        ("fashion-mnist?x=1", "fashion-mnist"),
    ],
)
def test_data_is_named_without_its_place(spec: str, name: str) -> None:
    assert data_name(spec) == name


def test_widths_without_any_run_are_the_papers() -> None:
    assert widths_of([record("float", 0, {"float": 1.0})]) == ("2", "3", "4")
    assert widths_of([record("lsq", 0, {"10": 1.0, "4": 1.0})]) == ("4", "10")
