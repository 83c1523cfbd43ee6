"""Text that follows a grammar: compiled beside the engine, followed token by token in it."""
