"""Measures depth attention; see `resjax bench kernels --help`."""
