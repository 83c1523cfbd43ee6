"""A bound on what the refusal of an object costs. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydantic import BaseModel


def with_one_unknown(
    kind: type[BaseModel], data: dict[str, Any], also_known: Collection[str] = ()
) -> dict[str, Any]:
    """Return an object's fields without all but the first of those that are not known.

    One is enough to refuse the object. Of a million, each would cost an error, and while errors are made
    nothing else of the process runs.

    Args:
        kind: what the object is to be.
        data: its fields.
        also_known: names that are known besides the fields of ``kind``.
    """
    if len(data) <= len(kind.model_fields) + len(also_known):
        return data
    known = {field.alias or name for name, field in kind.model_fields.items()}.union(also_known)
    first = next((name for name in data if name not in known), None)
    return {name: value for name, value in data.items() if name in known or name == first}
