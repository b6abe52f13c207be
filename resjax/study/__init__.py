"""What is learned from trained models: analyses, evaluations, sweeps, statistics."""
