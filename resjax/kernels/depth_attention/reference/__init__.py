"""Depth attention in plain JAX: what the kernels are held to, and what runs everywhere else."""
