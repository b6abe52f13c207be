"""A page, plots and a JSON file that show where models switch from input to next token."""
