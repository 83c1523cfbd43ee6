"""Our own CUDA kernels: building them at first use, loading and launching them, and what they report."""
