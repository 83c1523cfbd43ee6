"""An attention node's work on a GPU: paged KV in device memory, FlashInfer, graphs launched ahead behind waits."""
