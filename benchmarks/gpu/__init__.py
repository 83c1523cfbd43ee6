"""Benchmarks of the GPU data plane, on one or two GPUs."""
