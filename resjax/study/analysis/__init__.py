"""Measuring models and runs: what their hidden states decode to, and plots and reports of it."""
