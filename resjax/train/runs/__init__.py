"""A run apart from its training: settings, folder, saved models, and what it starts from."""
