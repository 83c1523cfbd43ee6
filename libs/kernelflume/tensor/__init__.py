"""Partial attention results: the exact merge and the oracle it is tested against."""
