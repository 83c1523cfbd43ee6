"""Finds models on disk and brings them into one layout. Free of torch: the router reads tokenizers here."""
