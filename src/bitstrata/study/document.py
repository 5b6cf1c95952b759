"""What a report is made of, before it becomes Markdown or a web page. Its text is plain: the writers escape it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """Level 2 is a chapter, level 3 a part of one."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """A column of numbers or words; neighbours of one group stand under one heading."""

    name: str
    group: str = ""
    paper: bool = False
    """Holds the paper's numbers, which are printed fainter."""
    text: bool = False
    """Holds words, which start at the left."""


@dataclass(frozen=True)
class Grid:
    """A table; each row has a cell for every column, and a cell may have several lines."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """An SVG, kept as a file of this name beside the Markdown."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True)
class Folded:
    """Blocks that a web page shows when asked to."""

    title: str
    blocks: tuple[Block, ...]


Block = Heading | Paragraph | Bullets | Grid | Picture | Folded


@dataclass(frozen=True)
class Document:
    title: str
    blocks: tuple[Block, ...]
