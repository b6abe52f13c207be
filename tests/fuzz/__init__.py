"""Hostile input for every command and every kind of file: `python -m tests.fuzz`."""
