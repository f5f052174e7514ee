"""How well one colour is told from another.

Source: WCAG 2.2, "relative luminance" and "contrast ratio".
"""

from __future__ import annotations

TEXT, GRAPHICS = 4.5, 3.0
"""The least contrast of text (SC 1.4.3), and of what a picture is understood by (SC 1.4.11)."""


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours, each written like #0b7a75: from 1 to 21."""
    dark, light = sorted((_luminance(one), _luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
