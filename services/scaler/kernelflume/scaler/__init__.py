"""The scaler: observes the attention pool, decides by a pure policy, and changes the routing table."""
