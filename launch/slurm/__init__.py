"""GPU clusters with SLURM."""
