"""The whole report: every table in both forms, from full, partial and hostile records, and nothing from outside."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from study.constructed import full_study, record, runs

from bitstrata.study import paper
from bitstrata.study.records import RunRecord
from bitstrata.study.report import write_report

VOID = {"meta", "br", "link", "img", "hr", "input"}
HOSTILE = "</td><script>alert(1)</script> | `x` [a](http://evil.example) ![b](c) & <img src=x onerror=y>"


class Page(HTMLParser):
    """Reads a page; refuses tags that do not close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def written(records: list[RunRecord], folder: Path, about: str = "A study.\n\nOf methods.") -> tuple[str, str, Page]:
    write_report(records, folder, title="The study", about=about)
    page = Page()
    html = (folder / "report.html").read_text(encoding="utf-8")
    page.feed(html)
    page.close()
    assert page.open == []
    return (folder / "report.md").read_text(encoding="utf-8"), html, page


RECORDS = {
    "none": [],
    "one": runs("lsq", (60.0, 68.0, 70.0)),
    "full": full_study(),
    "two groups": [*full_study(2), *runs("joint", (1.0, 2.0, 3.0), net="vgg", data="digits")],
}


@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS.keys())
def test_every_table_claim_and_figure_is_in_both(records: list[RunRecord], tmp_path: Path) -> None:
    markdown, _, page = written(records, tmp_path)
    text = "\n".join(page.text)
    for table in paper.TABLES:
        assert f"## Table {table.number}. {table.title}" in markdown
        assert f"Table {table.number}. {table.title}" in text
    for part in ("Figure 5", "Figure 7 (a, b)", "Figure 7 (c)", "Figure 8", "Time", "The paper's claims"):
        assert part in markdown
        assert part in text
    groups = len({(one.net, one.data) for one in records})
    assert len(re.findall(r"^\| 11\\\. ", markdown, re.MULTILINE)) == groups
    assert "Student's t" in text
    if groups == 1:
        # Every number of the paper is somewhere, whether it was run or not: beside ours or among the other networks.
        for block in paper.LARGE_IMAGES.blocks[1:]:
            assert f"{block.network} on ImageNet" in text


@pytest.mark.parametrize("records", RECORDS.values(), ids=RECORDS.keys())
def test_the_page_needs_nothing_else(records: list[RunRecord], tmp_path: Path) -> None:
    _, html, page = written(records, tmp_path)
    assert not {"script", "link", "img", "iframe", "object", "embed", "image", "use"} & set(page.tags)
    anchors = {value for _, name, value in page.attributes if name == "id"}
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "srcset", "xlink:href", "action", "data")
        if name == "href":
            assert (tag, (value or "")[:1]) == ("a", "#")
            assert (value or "")[1:] in anchors
    assert not re.search(r"https?:|//\w|@import|url\(", html)


def test_rows_of_tables_have_a_cell_for_every_column(tmp_path: Path) -> None:
    markdown, _, _ = written(full_study(), tmp_path)
    tables = [part.split("\n") for part in markdown.strip().split("\n\n") if part.startswith("| ")]
    assert len(tables) > 15
    for lines in tables:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_pictures_are_files_that_the_markdown_shows(tmp_path: Path) -> None:
    markdown, html, page = written(full_study(), tmp_path)
    shown = re.findall(r"\]\((pictures/[\w-]+\.svg)\)", markdown)
    assert sorted(shown) == sorted(f"pictures/{path.name}" for path in (tmp_path / "pictures").iterdir())
    assert len(shown) == 4 == page.tags.count("svg")
    assert all((tmp_path / name).read_text(encoding="utf-8").startswith("<svg xmlns=") for name in shown)
    assert html.count("</svg>") == 4


def test_text_of_records_is_escaped(tmp_path: Path) -> None:
    records = [
        record(HOSTILE, 0, (1.0, 2.0, 3.0)),
        record("co-training", 0, (), status="diverged", reason=HOSTILE, net=HOSTILE, data="digits"),
    ]
    markdown, html, page = written(records, tmp_path, about=HOSTILE)
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert HOSTILE in "".join(page.text)
    assert "<script" not in markdown
    assert "<img" not in markdown
    assert "://" not in markdown
    assert not re.search(r"(?<!\\)\]\(", markdown)
    assert "<script" not in html


def test_partial_records_say_what_was_not_run(tmp_path: Path) -> None:
    markdown, _, _ = written(runs("joint", (60.0, 68.0, 70.0), (61.0, 69.0, 71.0), (60.0, 68.0, 70.0)), tmp_path)
    assert "cannot be told: not run (lsq)" in markdown
    assert "cannot be told: not run (mixed)" in markdown
    assert "None of its methods was run" in markdown
    assert "No run has recorded what it shows." in markdown


def test_places_on_this_machine_are_not_told(tmp_path: Path) -> None:
    markdown, html, _ = written(full_study(), tmp_path)
    assert "somewhere" not in markdown
    assert "somewhere" not in html


def test_writing_again_gives_the_same(tmp_path: Path) -> None:
    first = written(full_study(), tmp_path)[:2]
    assert written(full_study(), tmp_path)[:2] == first
