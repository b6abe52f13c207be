"""What is done with experiments and models, by the commands and in Python alike."""
