"""Looking at runs and models."""
