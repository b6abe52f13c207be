"""The shapes that depth reads are measured at, and the least memory traffic of each form.

Traffic is counted in passes. A pass goes once over an array [T, D] in the dtype of the
sources: T D itemsize bytes. The few float32 numbers per token (logits, inverse RMS, lse: 4 (2N + 1)
bytes, 1.7 % of a pass at N = 8, D = 2048) and arrays [D] are left out. Shares of bandwidth are
therefore slightly too low, never too high.
"""

import dataclasses
import re

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class ReadShape:
  """The sizes of the arrays with which a kernel that reads along depth is timed.

  Attributes:
    num_tokens: T.
    d_model: D.
    num_sources: N; of residual streams R.
  """

  num_tokens: int
  d_model: int
  num_sources: int

  def __str__(self) -> str:
    return f"{self.num_tokens}x{self.d_model}x{self.num_sources}"


@dataclasses.dataclass(frozen=True)
class NetworkShape:
  """The depth reads of a run of sublayers.

  Attributes:
    num_sublayers: L.
    block_sublayers: S, sublayers of one depth block.
    num_tokens: T.
    d_model: D.
    num_completed: how many sources there are before the first sublayer; with 1 the embedding.
    normed: whether every read is followed by an RMS norm.
    final_read: whether the output is one more read.
  """

  num_sublayers: int
  block_sublayers: int
  num_tokens: int
  d_model: int
  num_completed: int = 1
  normed: bool = True
  final_read: bool = True

  def __str__(self) -> str:
    sizes = self.num_sublayers, self.block_sublayers, self.num_tokens, self.d_model
    return "x".join(map(str, sizes))

  def completed(self) -> list[int]:
    """Returns for every sublayer c, the number of sources that its depth block begins with."""
    return [self.num_completed + i // self.block_sublayers for i in range(self.num_sublayers)]


# The shapes, T, D and N, at which published kernels were measured. With 64 sources, another such
# shape, ptxas takes 100 s for a forward pass alone, because loops over sources are unrolled.
READS = (
  ReadShape(8192, 2048, 8),
  ReadShape(32768, 2048, 8),
  ReadShape(32768, 4096, 10),
  ReadShape(8192, 7168, 9),
)
STREAM_READS = (ReadShape(8192, 2048, 4),)
SMALL_STREAM_READS = (ReadShape(64, 128, 2),)
SMALL_READS = (ReadShape(64, 128, 3), ReadShape(200, 384, 5))
NETWORK = NetworkShape(32, 8, 65536, 2048, normed=False)
SMALL_NETWORK = NetworkShape(4, 2, 64, 128, normed=False)
BYTES_NETWORK = NetworkShape(64, 8, 8192, 2048)
BLOCK_SUBLAYERS = 8
LOW_BITS = 0.25  # passes of the four further bits of each bfloat16 number that merges keep


def block_of(read: ReadShape, block_sublayers: int = BLOCK_SUBLAYERS) -> NetworkShape:
  """Returns one depth block whose sublayers read the sources of `read`: N - 1 completed ones."""
  completed = max(read.num_sources - 1, 1)
  return NetworkShape(
    block_sublayers,
    block_sublayers,
    read.num_tokens,
    read.d_model,
    num_completed=completed,
    final_read=False,
  )


def read_of(block: NetworkShape) -> ReadShape:
  """Returns the shape of a read for which `block_of` returns this depth block."""
  return ReadShape(block.num_tokens, block.d_model, block.num_completed + 1)


def parse_read(text: str) -> ReadShape:
  """Returns the shape written as TxDxN.

  Raises:
    ValueError: it is written otherwise.
  """
  return ReadShape(*_sizes(text, 3, "TxDxN, such as 8192x2048x8"))


def parse_network(text: str) -> NetworkShape:
  """Returns the shape written as LxSxTxD.

  Raises:
    ValueError: it is written otherwise.
  """
  sublayers, per_block, tokens, width = _sizes(text, 4, "LxSxTxD, such as 32x8x65536x2048")
  return NetworkShape(sublayers, per_block, tokens, width, normed=False)


def _sizes(text: str, count: int, form: str) -> list[int]:
  if not re.fullmatch("x".join([r"[1-9]\d*"] * count), text):
    raise ValueError(f"shape {text!r} is not of the form {form}")
  return [int(size) for size in text.split("x")]


def pass_bytes(num_tokens: int, d_model: int, dtype: str = "bfloat16") -> int:
  """Returns the bytes of one pass, T D itemsize."""
  return num_tokens * d_model * jnp.dtype(dtype).itemsize


def read_forward(num_sources: int) -> int:
  """Returns N + 1: the sources in, the output out."""
  return num_sources + 1


def read_backward(num_sources: int) -> int:
  """Returns 2N + 1: the sources and the output's cotangent in, the sources' cotangents out."""
  return 2 * num_sources + 1


def stream_read_forward(num_streams: int) -> int:
  """Returns 2R + 2 passes: R streams and a branch output in, R streams and the read out."""
  return 2 * num_streams + 2


def stream_read_backward(num_streams: int) -> int:
  """Returns 3R + 3 passes: arguments and cotangents of results in, cotangents of arguments out."""
  return 3 * num_streams + 3


def residual_forward() -> int:
  """Returns 4, for add and norm of a plain residual: two summands in, sum and norm out."""
  return 4


def residual_backward() -> int:
  """Returns 4: the cotangents of sum and norm and the sum in, the summands' cotangent out."""
  return 4


def direct_forward(shape: NetworkShape) -> int:
  """Returns the sum of n + 1 over reads of n sources, or n + 3 where a read has an addend.

  Sources and addend are read, their sum and the output are written; the norm is in the read. n is c
  for the first sublayer of a depth block and c + 1 for the others. The read behind that first
  sublayer has no addend, because the sublayer's output is the running sum. Every other read adds
  the output of the sublayer before it.
  """
  return sum(read_forward(n) + 2 * adds for n, adds in _direct_reads(shape))


def direct_backward(shape: NetworkShape) -> int:
  """Returns the sum of 3n + 1 over reads of n sources.

  Sources, their cotangents so far and the output's cotangent are read; the cotangents of the
  sources are written.
  """
  return sum(3 * n + 1 for n, _ in _direct_reads(shape))


def two_phase_forward(shape: NetworkShape) -> float:
  """Returns the sum over depth blocks of c + S for phase 1, and 5 1/4 for each merge.

  Phase 1 reads c completed sources and writes S outputs. Where the last output of the block before
  joins its sum, that takes 2 more: the output is read, the sum is written. Every sublayer but the
  first of a block has a merge. It reads the phase-1 output, the running sum and the addend, and
  writes the running sum, the output, and the output's further bits, which bfloat16 has a quarter of
  an array of. The first merge of a block has no addend, and so 3 1/4.
  """
  total = float(
    shape.final_read * (read_forward(_final_sources(shape)) + 2 * _adds(shape, shape.num_sublayers))
  )
  for block, (completed, size) in enumerate(_blocks(shape)):
    merges = size - 1
    total += completed + size + (5 + LOW_BITS) * merges - 2 * (merges > 0)
    total += 2 * _adds(shape, block * shape.block_sublayers)
  return total


def two_phase_backward(shape: NetworkShape) -> float:
  """Returns the sum over depth blocks of 3c + S for phase 1, 6 1/4 per merge, 1 for a norm.

  Phase 1 reads c sources, their cotangents so far and S output cotangents, and writes c cotangents.
  A merge reads the output with its further bits, its cotangent, the running sum and its cotangent
  so far, and writes the cotangents of the running sum and of the phase-1 output. The norm is that
  of the first sublayer of a block.
  """
  total = float(shape.final_read * (3 * _final_sources(shape) + 1))
  for completed, size in _blocks(shape):
    total += 3 * completed + size + (6 + LOW_BITS) * (size - 1) + shape.normed
  return total


def _direct_reads(shape: NetworkShape) -> list[tuple[int, bool]]:
  """Returns for every read its number of sources and whether it has an addend."""
  counts = [c + (i % shape.block_sublayers > 0) for i, c in enumerate(shape.completed())]
  counts += [_final_sources(shape)] * shape.final_read
  return [(n, _adds(shape, i)) for i, n in enumerate(counts)]


def _adds(shape: NetworkShape, index: int) -> bool:
  """Returns whether read `index` adds the output of the sublayer before it to a sum."""
  return index > 0 and (index - 1) % shape.block_sublayers > 0


def _blocks(shape: NetworkShape) -> list[tuple[int, int]]:
  """Returns c and S of every depth block; the last one may be shorter."""
  completed = shape.completed()
  return [(c, completed.count(c)) for c in sorted(set(completed))]


def _final_sources(shape: NetworkShape) -> int:
  return shape.completed()[-1] + 1
