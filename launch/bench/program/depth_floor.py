"""The least memory traffic of depth reads and residual streams in a training step, by formulas.

The kernels of a fused read must read every source once and write its result; these figures count
that and nothing else, in passes per sublayer (see `passes`), averaged over all sublayers of the
network. What a `standard` residual moves is not subtracted.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp

from resjax.combinators import AttnRes, BlockAttnRes, Combinator, ResidualStreams
from resjax.kernels.depth_attention import bf16_remainder

_WORD = jnp.int16  # in which the kernels keep low bits
_LANES = 128


@dataclasses.dataclass(frozen=True)
class Floor:
  """The least traffic of the depth reads of a step, in passes per sublayer.

  Attributes:
    reads: the forward pass of all reads but the last: direct ones, or merges.
    again: the same once more, where the reverse pass recomputes it.
    reverse: their reverse pass.
    phase_1: phase 1 of reads in two phases, in the forward pass and again in the reverse pass.
    phase_1_reverse: its reverse pass.
    final: the read of the output, forward and reverse.
  """

  reads: float
  again: float
  reverse: float
  phase_1: float
  phase_1_reverse: float
  final: float

  @property
  def sum(self) -> float:
    """The passes of all parts together."""
    return sum(dataclasses.astuple(self))


def depth_floor(combinator: Combinator, remat: str, dtype: str) -> Floor | None:
  """Returns the least traffic of a combinator, None if this module has no formula for it.

  Let a depth block have c sources when it begins, and S sublayers.

  two phases: phase 1 reads c sources and writes S results; forwards twice, because the reverse
    pass opens each block again. In reverse it reads c sources, their cotangents so far and S
    cotangents, and writes c cotangents. A merge reads its result of phase 1 and the running sum,
    and writes the view: 3; where the reverse pass follows it also writes the low bits l of the view
    (1/4 where D is a multiple of 512). In reverse it reads the view and l, its cotangent, the
    running sum and its cotangent so far, and writes two cotangents: 6 + l. The first site of a
    layer of `attn_res` has nothing to merge: it normalises its result, 2, and 3 in reverse.
  direct: a read of n sources moves n + 1, and 3 n + 1 in reverse: the sources, their cotangents so
    far and the cotangent of the view in, the cotangents of the sources out.

  streams: a read of R streams, which applies the write before it, takes them and an output, and
    gives them and the view: 2 R + 2. In reverse it takes streams, output, their cotangents so far
    and that of the view, and gives the cotangents of streams and output: 3 R + 3. The final sum
    takes R + 1 and gives one; in reverse it takes R + 2 and gives R + 1. A layer that is computed
    again ends with a read whose streams nobody needs: R + 2. What a scan keeps of the streams for
    the reverse pass does not count.

  Norms are in the reads, and the residual addition is in the product before it, so neither counts.

  Args:
    combinator: the residual system of the decoder.
    remat: config.model.remat; all but `none` run the reads of a layer once more.
    dtype: that of the activations.
  """
  sites = len(combinator.sites)
  count = combinator.num_layers * sites
  if isinstance(combinator, ResidualStreams):
    return _of_streams(combinator.num_streams, count, sites, remat)
  if not isinstance(combinator, AttnRes | BlockAttnRes):
    return None
  # Every site appends a source, or every depth block does.
  full = isinstance(combinator, AttnRes)
  appended, size = (sites, sites) if full else (1, combinator.layers_per_block * sites)
  blocks = [(1 + appended * b, min(size, count - b * size)) for b in range(combinator.num_blocks)]
  last = 1 + appended * combinator.num_blocks
  if not _reads_in_two_phases(combinator, size):
    counts = [
      c + (place if full else place > 0) for c, sublayers in blocks for place in range(sublayers)
    ]
    return _direct(counts, last, remat)
  low = _low_bits(combinator.d_model, dtype)
  again = remat != "none"
  taken = 1 / sites if full else 0  # the share of the reads that are taken as phase 1 left them
  merged = 1 - taken
  return Floor(
    reads=2 * taken + (3 if again else 3 + low) * merged,
    again=2 * taken + (3 + low) * merged if again else 0,
    reverse=3 * taken + (6 + low) * merged,
    phase_1=2 * sum(c + sublayers for c, sublayers in blocks) / count,
    phase_1_reverse=sum(3 * c + sublayers for c, sublayers in blocks) / count,
    final=_final(last) / count,
  )


def _of_streams(streams: int, count: int, sites: int, remat: str) -> Floor:
  forward, final = 2 * streams + 2, (streams + 2) + (2 * streams + 3)
  again = 0 if remat == "none" else forward - streams / sites
  return Floor(forward, again, 3 * streams + 3, 0, 0, final / count)


def _direct(counts: Sequence[int], last: int, remat: str) -> Floor:
  """Returns the floor of direct reads, given the number of sources of each; the last has `last`."""
  forward = sum(n + 1 for n in counts) / len(counts)
  return Floor(
    reads=forward,
    again=0 if remat == "none" else forward,
    reverse=sum(3 * n + 1 for n in counts) / len(counts),
    phase_1=0,
    phase_1_reverse=0,
    final=_final(last) / len(counts),
  )


def _final(sources: int) -> int:
  """Returns n + 1 forwards and 3 n + 1 in reverse, in which nothing is recomputed."""
  return 4 * sources + 2


def _reads_in_two_phases(combinator: AttnRes | BlockAttnRes, sublayers: int) -> bool:
  if combinator.two_phase != "auto":
    return combinator.two_phase == "always"
  return not combinator.only_direct() and combinator.two_phases_move_less(sublayers)


def _low_bits(width: int, dtype: str) -> float:
  """Returns the passes of the further bits of a view, see `bf16_remainder`."""
  if not bf16_remainder.is_kept(jnp.dtype(dtype)):
    return 0
  return bf16_remainder.num_words(width // _LANES, _WORD) * _LANES / width
