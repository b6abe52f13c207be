"""Benchmarks: `python -m launch.bench WHAT`."""
