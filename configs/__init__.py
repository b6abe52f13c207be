"""Experiments as ml_collections files, which hold data only."""
