"""The simulator: what a workload would cost on hardware that is not there, under the live scaling policy."""
