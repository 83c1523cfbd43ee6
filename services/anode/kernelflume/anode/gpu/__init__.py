"""An attention node's work on a GPU: paged KV, FlashInfer, graphs launched ahead behind waits."""
