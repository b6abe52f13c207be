"""Reads of residual streams on TPUs, in Pallas (Mosaic).

A kernel runs once per tile of `TOKENS` tokens, of which it has all streams on the chip. Channels
lie on the lanes of registers. Coefficients arrive with tokens on the lanes, are computed like that,
and are turned to columns, a token per row, where they multiply channels.
"""
