"""Compiles the training step for devices that need not be there, and reads what it needs."""
