"""The decode step of a weight node on a GPU: one captured graph a row count, no node or route inside."""
