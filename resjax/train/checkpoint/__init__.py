"""Saving the state of a run, and reading it back."""
