"""A report as one web page that needs nothing else: its style and its pictures stand in it, and it runs no script."""

from __future__ import annotations

from html import escape
from itertools import groupby

from bitstrata.study.document import Block, Bullets, Column, Document, Folded, Grid, Heading, Paragraph, Picture

NEWLINE = "\n"  # Python 3.10 and 3.11 allow no backslash inside the braces of an f-string

#: Wider tables are set smaller.
_MANY_COLUMNS = 10

_VERDICTS = {"holds": "yes", "does not hold": "no", "cannot be told": "open"}

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; color: #1d2733;
  background: #fff; max-width: 1120px; margin: 0 auto; padding: 24px 28px 64px; }
h1 { font-size: 1.9em; line-height: 1.2; margin: 16px 0 12px; }
h2 { font-size: 1.3em; margin: 44px 0 8px; padding-top: 14px; border-top: 1px solid #e3e8ee; }
h3 { font-size: 1em; margin: 20px 0 6px; color: #2a6f97; }
h4 { font-size: 0.94em; margin: 14px 0 4px; }
p, li { max-width: 78ch; }
ul { padding-left: 1.4em; font-size: 0.875em; color: #46525f; }
nav ul { columns: 2; font-size: 0.95em; }
a { color: #2a6f97; text-decoration: none; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.875em; font-variant-numeric: tabular-nums; margin: 8px 0 14px; }
th, td { padding: 5px 9px; text-align: right; vertical-align: top; border-bottom: 1px solid #e3e8ee; }
td { white-space: nowrap; }
thead th { font-weight: 600; vertical-align: bottom; }
thead tr:last-child th, thead th[rowspan] { border-bottom: 2px solid #1d2733; }
th.group { text-align: center; border-bottom: 1px solid #a9b4c0; }
th.word, td.word { text-align: left; white-space: normal; }
.paper { color: #7a8694; font-weight: 400; }
td.word.paper { font-size: 0.93em; }
.starts { border-left: 1px solid #e3e8ee; }
tbody tr:hover { background: #f5f8fa; }
.claims { width: 100%; }
.claims th:nth-child(1) { width: 21%; } .claims th:nth-child(2) { width: 13%; } .claims th:nth-child(3) { width: 46%; }
.claims td:nth-child(2) { font-weight: 600; }
.dense { font-size: 0.78em; } .dense th, .dense td { padding: 4px 5px; }
.dense td:first-child { min-width: 130px; }
td.wraps { white-space: normal; }
.yes { color: #1b7f4c; } .no { color: #9e2a2b; } .open { color: #8a6412; }
figure { margin: 14px 0 24px; }
figure svg { max-width: 100%; height: auto; border: 1px solid #e3e8ee; border-radius: 6px; }
figcaption { font-size: 0.875em; color: #46525f; max-width: 90ch; }
details { margin: 10px 0; } summary { cursor: pointer; color: #2a6f97; font-size: 0.875em; }
@media print {
  body { max-width: none; padding: 0; font-size: 12px; }
  table { font-size: 0.8em; }
  .dense { font-size: 0.62em; }
  th, td { padding: 3px 4px; }
  h2, h3, h4 { break-after: avoid; }
  tr, figure { break-inside: avoid; }
  .wide { overflow: visible; }
  nav { display: none; }
}
"""


def as_webpage(document: Document) -> str:
    chapters = [block.text for block in document.blocks if isinstance(block, Heading) and block.level == 2]
    contents = "".join(
        f'<li><a href="#{_anchor(index)}">{escape(text)}</a></li>' for index, text in enumerate(chapters)
    )
    first = next((index for index, block in enumerate(document.blocks) if isinstance(block, Heading)), 0)
    parts = []
    chapter = 0
    for index, block in enumerate(document.blocks):
        if index == first:
            parts.append(f"<nav><ul>{contents}</ul></nav>")
        if isinstance(block, Heading) and block.level == 2:
            parts.append(f'<h2 id="{_anchor(chapter)}">{escape(block.text)}</h2>')
            chapter += 1
        else:
            parts.append(_block(block))
    title = escape(document.title)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _anchor(index: int) -> str:
    return f"chapter-{index + 1}"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        case Grid():
            return _grid(block)
        case Picture(_, svg, caption):
            # Inside a page an SVG needs no namespace, and so the page names no address at all.
            inline = svg.replace(
                ' xmlns="http://www.w3.org/2000/svg"', f' role="img" aria-label="{escape(caption)}"', 1
            )
            return f"<figure>\n{inline}<figcaption>{escape(caption)}</figcaption>\n</figure>"
        case Folded(title, blocks):
            inner = "\n".join(_block(one) for one in blocks)
            return f"<details>\n<summary>{escape(title)}</summary>\n{inner}\n</details>"


def _grid(grid: Grid) -> str:
    heads = []
    grouped = any(column.group for column in grid.columns)
    below = []
    for group, members in groupby(grid.columns, key=lambda column: column.group):
        columns = list(members)
        if group:
            heads.append(f'<th class="group starts" colspan="{len(columns)}">{escape(group)}</th>')
            below += [
                f"<th{_classes(column, starts=index == 0)}>{escape(column.name)}</th>"
                for index, column in enumerate(columns)
            ]
        else:
            rows = ' rowspan="2"' if grouped else ""
            heads += [f"<th{_classes(column)}{rows}>{escape(column.name)}</th>" for column in columns]
    second = f"<tr>{''.join(below)}</tr>" if below else ""
    body = "\n".join(_row(grid.columns, row) for row in grid.rows)
    claims = any(column.name == "verdict" for column in grid.columns)
    kind = ' class="claims"' if claims else ' class="dense"' if len(grid.columns) > _MANY_COLUMNS else ""
    return (
        f'<div class="wide"><table{kind}>\n<thead><tr>{"".join(heads)}</tr>{second}</thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _row(columns: tuple[Column, ...], row: tuple[str, ...]) -> str:
    cells = []
    before = ""
    for column, cell in zip(columns, row, strict=True):
        verdict = _VERDICTS.get(cell.partition(":")[0], "") if column.name == "verdict" else ""
        # The one long thing in a column of numbers.
        look = "wraps" if "diverged" in cell and not column.text else verdict
        starts = bool(column.group) and column.group != before
        cells.append(f"<td{_classes(column, look, starts=starts)}>{'<br>'.join(map(escape, cell.split(NEWLINE)))}</td>")
        before = column.group
    return f"<tr>{''.join(cells)}</tr>"


def _classes(column: Column, more: str = "", *, starts: bool = False) -> str:
    flags = (("word", column.text), ("paper", column.paper), ("starts", starts))
    names = [name for name, wanted in flags if wanted] + ([more] if more else [])
    return f' class="{" ".join(names)}"' if names else ""
