"""Depth attention in plain JAX: the definition that the kernels are tested against."""
