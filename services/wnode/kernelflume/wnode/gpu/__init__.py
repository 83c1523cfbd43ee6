"""The decode step of a weight node on a GPU: one captured graph a number of rows, no node or route inside it."""
