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

from resjax.kernels.mosaic_tpu.call import Tiled as Tiled
from resjax.kernels.mosaic_tpu.call import TileKernel as TileKernel
from resjax.kernels.mosaic_tpu.call import in_memory as in_memory
from resjax.kernels.mosaic_tpu.call import launch as launch
from resjax.kernels.mosaic_tpu.call import on_one_device as on_one_device
from resjax.kernels.mosaic_tpu.call import tiled as tiled
from resjax.kernels.mosaic_tpu.chip import ROWS as ROWS
from resjax.kernels.mosaic_tpu.chip import SUBLANES as SUBLANES
from resjax.kernels.mosaic_tpu.chip import chip_of as chip_of
from resjax.kernels.mosaic_tpu.loops import Span as Span
from resjax.kernels.mosaic_tpu.loops import clear_rows_from as clear_rows_from
from resjax.kernels.mosaic_tpu.loops import dot as dot
from resjax.kernels.mosaic_tpu.loops import for_each_chunk as for_each_chunk
from resjax.kernels.mosaic_tpu.loops import for_each_row_group as for_each_row_group
from resjax.kernels.mosaic_tpu.loops import wide as wide
from resjax.kernels.mosaic_tpu.numbers import TOKENS as TOKENS
from resjax.kernels.mosaic_tpu.numbers import column_room as column_room
from resjax.kernels.mosaic_tpu.numbers import from_columns as from_columns
from resjax.kernels.mosaic_tpu.numbers import number_room as number_room
from resjax.kernels.mosaic_tpu.numbers import put as put
from resjax.kernels.mosaic_tpu.numbers import spread as spread
from resjax.kernels.mosaic_tpu.numbers import to_columns as to_columns
from resjax.kernels.mosaic_tpu.numbers import turned as turned
from resjax.kernels.mosaic_tpu.stream_plan import StreamPlan as StreamPlan
from resjax.kernels.mosaic_tpu.stream_plan import summed_spec as summed_spec
from resjax.kernels.mosaic_tpu.stream_plan import whole_spec as whole_spec
from resjax.kernels.operation import LANES as LANES
