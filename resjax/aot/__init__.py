"""The training step compiled for devices that need not be there."""
