"""The routing-table store: seams, the Redis store, its in-memory twin and the embedded server."""
