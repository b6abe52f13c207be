"""Depth attention on TPUs, in Pallas (Mosaic).

The tokens of a device are cut into *tiles*, and a kernel runs once per tile: the pipeline of Pallas
brings the rows of a tile into on-chip memory (VMEM) while the tile before is worked on. Within a
tile a kernel takes `ROWS` tokens and a *chunk* of some channels at a time, which fill whole
registers; channels lie on the lanes of a register. A plan (X_plan.py) holds the sizes of all this.
"""
