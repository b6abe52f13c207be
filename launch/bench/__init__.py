"""Benchmarks: `resjax bench WHAT`."""
