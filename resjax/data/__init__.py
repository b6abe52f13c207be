"""From text to batches: corpora, tokenizer, packed rows, and the input pipeline."""
