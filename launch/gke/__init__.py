"""Trains on Google Kubernetes Engine, with JobSets."""
