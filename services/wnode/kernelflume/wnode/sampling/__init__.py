"""How the next token of each sequence is chosen."""
