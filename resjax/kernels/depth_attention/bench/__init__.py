"""Measures depth attention; `python -m resjax.kernels.depth_attention.bench --help`."""
