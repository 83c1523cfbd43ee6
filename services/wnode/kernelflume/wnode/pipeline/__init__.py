"""How many microbatches the next decode step is split into, and which rows each takes; no GPU in it."""
