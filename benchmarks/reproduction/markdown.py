"""Parts of a page in Markdown. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.reproduction.claims import Claim


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; bars in its cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def figures_of(claim: Claim, values: Sequence[float]) -> str:
    """Return the least and the largest of values in the unit of a claim."""
    if not values:
        return "-"
    low, high = (f"{value:.{claim.digits}f}" for value in (min(values), max(values)))
    unit = f" {claim.unit}" if claim.unit else ""
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def plain(value: Any) -> str:
    """Return a value of a setting in words."""
    match value:
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
        case list() | tuple():
            return ", ".join(map(plain, value))
        case _:
            return str(value).removeprefix("models/").removesuffix(".yaml")


def capital(words: str) -> str:
    """Return words that begin with a capital letter."""
    return words[0].upper() + words[1:]
