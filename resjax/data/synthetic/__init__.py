"""Tasks whose answers are known: documents of symbols, and what is to be answered where."""
