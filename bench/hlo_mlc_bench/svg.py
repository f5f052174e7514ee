"""The few elements that our pictures are drawn with, as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

OURS, XLA = "#0b7a75", "#c8553d"
"""The colours of hlo_mlc and of jax.jit."""

PAPER = "#ffffff"
INK = "#222222"
FAINT = "#666666"
"""The colour of what explains."""

LINE = "#bbbbbb"
"""The colour of frames and of lines that lead the eye."""

# What each is on a dark page: as light on dark as it is dark on light.
DARK = {
    PAPER: "#0d1117",
    INK: "#e3e6e8",
    FAINT: "#a3adb4",
    LINE: "#4a5157",
    OURS: "#4fc3bb",
    XLA: "#ee8a70",
}
_STYLE = f"text{{fill:{DARK[INK]}}}" + "".join(
    f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}'
    for light, dark in DARK.items()
)


def document(width: int, height: int, parts: Iterable[str]) -> str:
    """A page of this size in pixels with `parts` on it, dark where the page around it is."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f"<style>@media (prefers-color-scheme: dark) {{{_STYLE}}}</style>",
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            *parts,
            "</svg>\n",
        )
    )


def text(
    x: float, y: float, content: str, *, size: int = 12, anchor: str = "start", colour: str = INK
) -> str:
    """A line of text; `anchor` ("start", "middle" or "end") is the part of it that lies at x."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(content)}</text>'
    )
