"""The attention node: holds keys and values by token ranges, attends to them, and has no weights."""
