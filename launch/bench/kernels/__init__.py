"""Measures depth attention; see `python -m launch.bench kernels --help`."""
