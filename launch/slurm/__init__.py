"""Trains on GPU clusters with SLURM."""
