"""The few elements that our pictures are drawn with, as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

OURS, XLA = "#0b7a75", "#c8553d"
"""The colours of hlo_mlc and of jax.jit."""

_INK = "#222"
FAINT = "#666"
"""The colour of what explains."""


def document(width: int, height: int, parts: Iterable[str]) -> str:
    """A white page of this size in pixels with `parts` on it."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            *parts,
            "</svg>\n",
        )
    )


def text(
    x: float, y: float, content: str, *, size: int = 12, anchor: str = "start", colour: str = _INK
) -> str:
    """A line of text; `anchor` ("start", "middle" or "end") is the part of it that lies at x."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(content)}</text>'
    )
