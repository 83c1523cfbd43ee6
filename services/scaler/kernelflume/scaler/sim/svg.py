"""SVG drawings for a place within an HTML page. Pure."""

from __future__ import annotations

import re

_IDENTIFIER = re.compile(r'(\bid="|href="#|url\(#)')
_INK = re.compile(r"#000000\b|\bblack\b")
_WIDTH = re.compile(r'(<svg\b[^>]*?) width="[^"]*"', re.DOTALL)
_HEIGHT = re.compile(r'(<svg\b[^>]*?) height="[^"]*"', re.DOTALL)


def embedded(svg: str, name: str, title: str) -> str:
    """Return a drawing as an element of a page.

    Args:
        svg: a whole SVG file whose ink is black.
        name: put before its identifiers, of which a page may have each once.
        title: what is told to those who do not see it; plain words.

    Black becomes the colour of the page's text, and the drawing as wide as there is room.
    """
    element = svg[svg.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    element = _IDENTIFIER.sub(rf"\g<1>{name}-", element)
    element = _INK.sub("currentColor", element)
    element = _HEIGHT.sub(r"\1", _WIDTH.sub(r"\1", element, count=1), count=1)
    # Text without a colour of its own is drawn black, whatever the page's colour is.
    words = title.replace("&", "and").replace("<", "").replace('"', "'")
    return element.replace("<svg", f'<svg role="img" aria-label="{words}" fill="currentColor"', 1)
