"""Short texts as batches that a decoder can run."""

from collections.abc import Sequence

import numpy as np

from resjax.base.sharding import Layout
from resjax.data import Batch

_MULTIPLE = {"cpu": 16}  # of tokens in a row, by platform
_USUAL_MULTIPLE = 128  # attention kernels are fast for such lengths


def rows_of(prompts: Sequence[np.ndarray], layout: Layout) -> Batch:
  """Returns prompts of one length, each in a row of its own, as rows that devices can share.

  Rows are padded to a length that kernels like, and the last row is repeated until the rows divide
  over the devices.

  Args:
    prompts: the tokens of each prompt [T].
    layout: the layout of the decoder.

  Returns:
    `inputs`, `segment_ids` and `positions` [B, T']; segment 0 is padding.
  """
  length, shards = len(prompts[0]), layout.num_shards("batch")
  multiple = _MULTIPLE.get(layout.platform, _USUAL_MULTIPLE)
  size = -(-length // multiple) * multiple
  rows = np.zeros((-(-len(prompts) // shards) * shards, size), np.int32)
  rows[: len(prompts), :length], rows[len(prompts) :, :length] = prompts, prompts[-1]
  place = np.broadcast_to(np.arange(size, dtype=np.int32), rows.shape)
  return {
    "inputs": rows,
    "segment_ids": (place < length).astype(np.int32),
    # Padding has the last position of the text: beyond it there may be no learned positions, and
    # their NaN would pass through masks.
    "positions": np.minimum(place, length - 1),
  }
