"""Measures the kernels of depth reads and residual streams; see `resjax bench kernels --help`."""
