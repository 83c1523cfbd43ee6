"""Where attention nodes come from: one small seam and its implementations."""
