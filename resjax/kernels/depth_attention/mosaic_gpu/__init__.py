"""Depth attention on NVIDIA GPUs from Hopper on, in Pallas (Mosaic GPU).

A kernel is launched as many *programs* as run at a time. A program is one warpgroup, 128 threads,
and works on one token at a time, on every P-th one if there are P programs. The rows of its tokens
pass through *rings* in shared memory (ring.py), filled by asynchronous copies that run ahead. A row
is D channels in the registers of the program (row_ops.py).
"""
