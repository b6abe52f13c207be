"""What a run records and shows while it goes on: metrics, progress, and where its time goes."""
