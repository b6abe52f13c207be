"""Depth attention on NVIDIA GPUs, Hopper and newer, in Pallas (Mosaic GPU)."""
