"""The page's files, which hold no data of the cluster: read once, served with the headers that guard them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

PAGE_PATH = "/ui/"
_INDEX = "index.html"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEADERS = {
    # Nothing from elsewhere, nothing inline, in nobody's frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Asked again each time, answered with 304: a new release is seen at once.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


def read_files() -> dict[str, PageFile]:
    """Return the files by the paths that they are served at."""
    found = {}
    for file in (resources.files(__package__) / "page").iterdir():
        media_type = _MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            path = PAGE_PATH + ("" if file.name == _INDEX else file.name)
            found[path] = PageFile(content, media_type, etag)
    return found


def page_paths() -> frozenset[str]:
    """Return every path that the page is loaded from, exactly.

    A browser sends no API key when it loads a page, so these need none; all that is below /ui/api does.
    """
    return frozenset({PAGE_PATH.rstrip("/"), *read_files()})
