"""What users call: the experiment in Python, and what comes with the package."""
