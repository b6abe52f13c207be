"""What kernels for TPUs share, in Pallas (Mosaic); no operation's own.

The tokens of a device are cut into *tiles*, and a kernel runs once per tile: the pipeline of Pallas
brings the rows of a tile into on-chip memory (VMEM) while the tile before is worked on. Within a
tile a kernel takes `ROWS` tokens and a *chunk* of some channels at a time, which fill whole
registers; channels lie on the lanes of a register.

from resjax.kernels.mosaic_tpu import for_each_chunk, for_each_row_group, wide

def double(_: Array, rows: Span) -> None:
  def chunk(lanes: Span, _: None) -> None:
    target[rows, lanes] = 2 * wide(source, rows, lanes)

  for_each_chunk(width, LANES, chunk)

for_each_row_group(tokens, double)
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
