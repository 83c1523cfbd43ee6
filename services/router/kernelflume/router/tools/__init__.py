"""Tools: how calls of them are asked for in a prompt, and found again in what a model writes."""
