"""Facts about chips and slices, each once."""
