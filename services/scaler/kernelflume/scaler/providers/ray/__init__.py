"""Services as actors of a Ray cluster: joining it, finding a place, hosting, and the provider on top."""
