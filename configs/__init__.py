"""What to run: data-only ml_collections files."""
