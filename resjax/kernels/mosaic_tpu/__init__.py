"""What kernels for TPUs share, in Pallas (Mosaic); no operation's own.

The tokens of a device are cut into *tiles*, and a kernel runs once per tile: the pipeline of Pallas
brings the rows of a tile into on-chip memory (VMEM) while the tile before is worked on. Within a
tile a kernel takes `ROWS` tokens and a *chunk* of some channels at a time, which fill whole
registers; channels lie on the lanes of a register:

  def double(_: Array, rows: Span) -> None:
    def chunk(lanes: Span, _: None) -> None:
      target[rows, lanes] = 2 * wide(source, rows, lanes)

    for_each_chunk(width, LANES, chunk)

  for_each_row_group(tokens, double)
"""

from resjax.kernels.mosaic_tpu import call as call
from resjax.kernels.mosaic_tpu import columns as columns
from resjax.kernels.mosaic_tpu.chip import ROWS as ROWS
from resjax.kernels.mosaic_tpu.chip import SUBLANES as SUBLANES
from resjax.kernels.mosaic_tpu.chip import chip_of as chip_of
from resjax.kernels.mosaic_tpu.columns import TOKENS as TOKENS
from resjax.kernels.mosaic_tpu.loops import Span as Span
from resjax.kernels.mosaic_tpu.loops import clear_rows_from as clear_rows_from
from resjax.kernels.mosaic_tpu.loops import dot as dot
from resjax.kernels.mosaic_tpu.loops import for_each_chunk as for_each_chunk
from resjax.kernels.mosaic_tpu.loops import for_each_row_group as for_each_row_group
from resjax.kernels.mosaic_tpu.loops import wide as wide
from resjax.kernels.mosaic_tpu.stream_plan import StreamPlan as StreamPlan
from resjax.kernels.mosaic_tpu.stream_plan import summed_spec as summed_spec
from resjax.kernels.mosaic_tpu.stream_plan import whole_spec as whole_spec
