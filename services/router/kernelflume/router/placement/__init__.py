"""Where a request runs: pure decisions over what is known of weight nodes, its session and its prompt."""
