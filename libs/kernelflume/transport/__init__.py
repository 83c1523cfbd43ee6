"""The data plane: one-sided writes with notices between registered memory."""
