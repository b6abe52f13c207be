"""What a depth read takes, keeps and gives back, the same for every backend."""

import dataclasses
from typing import Any, NamedTuple

from resjax.sharding import Layout
from resjax.typing import Array


@dataclasses.dataclass(frozen=True)
class Read:
  """The static part of a depth read.

  Attributes:
    num_heads: H, a divisor of D.
    eps: added to mean squares, of sources and of the output.
    adds: whether an addend joins the last source first.
    threaded: whether sources are returned, so that their cotangents arrive accumulated.
    implementation: name of the backend.
    layout: mesh, and how token axes are split over it.
    interpret: False, or what the `interpret` of a Pallas call takes.
  """

  num_heads: int
  eps: float
  adds: bool
  threaded: bool
  implementation: str
  layout: Layout
  interpret: Any = False


class Operands(NamedTuple):
  """The arrays of a depth read; slots are those of `bank`, then `recent`.

  Attributes:
    bank: [N_max, ..., D] or None.
    recent: arrays [..., D].
    counts: int32 [2]: number of valid slots of the bank; 1 if the last of `recent` counts, else 0.
    query: [D], the gain of the key norm multiplied in.
    addend: [..., D] or None.
    out_norm_scale: [D] or None.
  """

  bank: Array | None
  recent: tuple[Array, ...]
  counts: Array
  query: Array
  addend: Array | None
  out_norm_scale: Array | None

  @property
  def num_slots(self) -> int:
    """N, valid or not."""
    return (0 if self.bank is None else self.bank.shape[0]) + len(self.recent)

  @property
  def like(self) -> Array:
    """Returns an array of the shape [..., D] and dtype of a source; not to be read."""
    return self.recent[0] if self.recent else self.bank[0]


class Stats(NamedTuple):
  """What the reverse pass keeps of a read, in float32 or wider.

  Attributes:
    inverse_rms: [N, ...], of every source.
    logits: [N, ...], with several heads [N, ..., H]; -inf at slots that do not count.
    lse: log Σ_n exp(logits_n), [...] or [..., H].
  """

  inverse_rms: Array
  logits: Array
  lse: Array


class Cotangents(NamedTuple):
  """What a reverse pass returns.

  Attributes:
    bank: [N_max, ..., D] or None.
    recent: arrays [..., D].
    query: [D], summed over all tokens.
    out_norm_scale: [D], summed over all tokens, or None.
  """

  bank: Array | None
  recent: tuple[Array, ...]
  query: Array
  out_norm_scale: Array | None
