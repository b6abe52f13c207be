"""Sweeps: the runs of some arms with some seeds, the plan made before them, and what they show."""
