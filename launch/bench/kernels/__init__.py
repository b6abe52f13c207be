"""Measures depth attention; `python -m launch.bench kernels --help`."""
