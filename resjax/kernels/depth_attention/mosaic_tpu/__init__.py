"""Depth attention on TPUs, in Pallas."""
