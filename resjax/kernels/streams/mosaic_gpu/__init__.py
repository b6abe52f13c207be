"""Reads of residual streams on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU).

The kernels work on one token at a time, on the rows and rings of the kernels for depth attention. A
token of R streams has R D numbers, and φ as many rows: too much to keep, so products with φ run on
tiles of tokens, in XLA, between two kernels (products.py). In streams, passes over [T, D]:

| pass | what runs | R | plain |
|------|-----------|---|-------|
| forward | write; products; mix and norm | 4 R + 2 | 2 R + 2 without φ |
| reverse | unmix; products of φ and with φ; unwrite | 8 R + 5 | 4 R + 5 without φ |
"""
