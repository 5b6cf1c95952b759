"""A report as Markdown, with its pictures as files beside it."""

from __future__ import annotations

import re

from bitstrata.study.document import Block, Bullets, Document, Folded, Grid, Heading, Paragraph, Picture

PICTURES = "pictures"

#: What Markdown or HTML would take for more than itself.
_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")


def as_markdown(document: Document) -> str:
    parts = [f"# {_plain(document.title)}", *(_block(block) for block in document.blocks)]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_plain(text)}"
        case Paragraph(text):
            return _plain(text)
        case Bullets(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Grid():
            return _grid(block)
        case Picture(name, _, caption):
            return f"![{_plain(caption)}]({PICTURES}/{name}.svg)\n\n{_plain(caption)}"
        case Folded(title, blocks):
            return "\n\n".join([f"**{_plain(title)}**", *(_block(one) for one in blocks)])


def _grid(grid: Grid) -> str:
    names = []
    for column in grid.columns:
        name = "paper" if column.paper and column.group else " ".join(filter(None, (column.group, column.name)))
        names.append(name.removesuffix(" ours"))
    marks = [":---" if column.text else "---:" for column in grid.columns]
    lines = [[_plain(name) for name in names], marks, *([_cell(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return "<br>".join(_plain(line) for line in text.split("\n"))


def _plain(text: str) -> str:
    """On one line, and with nothing in it that has a meaning of its own."""
    escaped = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = _SPECIAL.sub(r"\\\1", escaped)
    # Bare addresses would become links.
    escaped = escaped.replace("://", ":&#47;&#47;")
    # At the start of a line these would begin a list or underline a heading.
    return re.sub(r"^(\d*)([-+=.)])(?=\s|$)", r"\1\\\2", escaped)
