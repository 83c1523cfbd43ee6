"""The weight node: holds the model and runs everything but attention over the KV pool."""
