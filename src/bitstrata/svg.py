"""A small canvas for pictures of measurements: text, boxes and lines, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

INK, FAINT, RULE, PAPER = "#1d2733", "#6b7785", "#e3e8ee", "#ffffff"
#: One for each width or series, from dark to light.
SHADES = ("#14334d", "#2a6f97", "#61a5c2", "#89c2d9", "#a9d6e5", "#c5e4ee", "#dff1f6")
WARM, RED, GREY = "#e09f3e", "#9e2a2b", "#8d99ae"


class Canvas:
    """Grows downwards; `finish` gives the file's text."""

    def __init__(self, width: int = 1080, margin: int = 36) -> None:
        self.width = width
        self.margin = margin
        self._parts: list[str] = []

    @property
    def inner(self) -> int:
        return self.width - 2 * self.margin

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: int = 13,
        weight: int = 400,
        colour: str = INK,
        end: bool = False,
        middle: bool = False,
        upwards: bool = False,
    ) -> None:
        """Starts at the place, or ends there, or has it in the middle; `upwards` reads from below."""
        anchor = ' text-anchor="end"' if end else ' text-anchor="middle"' if middle else ""
        turn = f' transform="rotate(-90 {x:g} {y:g})"' if upwards else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" fill="{colour}"{anchor}{turn}>'
            f"{escape(text)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str, title: str = "") -> None:
        tip = f"<title>{escape(title)}</title>" if title else ""
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}" '
            f'fill="{colour}">{tip}</rect>'
        )

    def line(
        self, points: Sequence[tuple[float, float]], colour: str, *, thickness: float = 1.5, dashed: bool = False
    ) -> None:
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<polyline points="{_places(points)}" fill="none" stroke="{colour}" stroke-width="{thickness:g}"{dashes}/>'
        )

    def area(self, points: Sequence[tuple[float, float]], colour: str, opacity: float) -> None:
        """A filled polygon that lets through what lies behind it."""
        self._parts.append(f'<polygon points="{_places(points)}" fill="{colour}" fill-opacity="{opacity:g}"/>')

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        colour: str,
        *,
        opacity: float = 1,
        hollow: bool = False,
        title: str = "",
    ) -> None:
        tip = f"<title>{escape(title)}</title>" if title else ""
        look = f'fill="{PAPER}" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
        self._parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" {look} opacity="{opacity:g}">{tip}</circle>'
        )

    def rule(self, y: float) -> None:
        self.box(self.margin, y, self.inner, 1, RULE)

    def legend(self, y: float, entries: list[tuple[str, str]]) -> None:
        """Colour and label of each, in one line."""
        x = float(self.margin)
        for colour, label in entries:
            self.box(x, y - 10, 12, 12, colour)
            self.text(x + 18, y, label, colour=FAINT)
            x += 38 + 7.2 * len(label)

    def finish(self, height: float) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {height:g}" width="{self.width}" '
            f'height="{height:g}" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
            f'<rect width="{self.width}" height="{height:g}" fill="{PAPER}"/>\n' + "\n".join(self._parts) + "\n</svg>\n"
        )


def _places(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def clipped(name: str, characters: int) -> str:
    """The end of a long name says more than its start."""
    return name if len(name) <= characters else "…" + name[1 - characters :]
