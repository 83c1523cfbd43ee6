"""The decoder that a weight node runs, cut open where attention happens elsewhere."""
