"""What a run writes down and shows while it goes on: metrics, progress, time."""
