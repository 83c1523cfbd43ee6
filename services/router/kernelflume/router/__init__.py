"""The OpenAI gateway: HTTP in, weight nodes behind."""
