"""Names of nodes: which node, and which start of it."""

from __future__ import annotations

_SEPARATOR = "#"


def node_name(node_id: str, incarnation: str) -> str:
    """Return ``node_id#incarnation``, unique for each start of a node; its transport agent's name too."""
    return f"{node_id}{_SEPARATOR}{incarnation}"


def split_name(name: str) -> tuple[str, str]:
    """Return the node id and the incarnation of a name; a part that is missing is empty."""
    node_id, _, incarnation = name.partition(_SEPARATOR)
    return node_id, incarnation
