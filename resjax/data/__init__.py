"""From text to batches: corpora, tokenizers, packed rows, and the input pipeline."""
