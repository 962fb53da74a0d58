"""Kernels of the encoder's layers: Triton for the GPU, numba for the CPU."""
