"""The alignment of a model: how its hidden states turn from the input token to the next token."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from resjax.base import typed_json

READINGS = ("closed", "read")
LENS_METRICS = (
  "input_rank",
  "input_log_rank",
  "input_probability",
  "next_rank",
  "next_log_rank",
  "next_probability",
  "next_nats",
  "entropy",
  "kl_to_final",
  "top1_is_input",
  "top1_is_target",
)
STATE_METRICS = (
  "cosine_input",
  "cosine_next",
  "cosine_input_normed",
  "cosine_next_normed",
  "projection_input",
  "projection_next",
  "energy_share",
  "hidden_norm",
)
GEOMETRY_METRICS = (*STATE_METRICS, "branch_norm")
METRICS = LENS_METRICS + GEOMETRY_METRICS
DECILES = tuple(f"decile_{number}" for number in range(10))
GROUPS = ("all", "distinct", *DECILES, "balanced", "shuffled")
# By what the lens reads a token: the names of its metrics in METRICS, and whether more is better.
MEASURES = {
  "probability": ("{}_probability", 1),
  "log_rank": ("{}_log_rank", -1),
  "cosine": ("cosine_{}", 1),
  "projection": ("projection_{}", 1),
}

CLAIMED_SHARE = 0.95  # the least share of resamples with something, or without it, to claim it

# The types of numbers in files.
Count = Annotated[int, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Values = list[float | None]  # null stands for a number that is not finite


@dataclasses.dataclass(frozen=True)
class DepthPosition:
  """A position along depth: the embedding, or the place behind a site of a layer.

  Attributes:
    layer: 0..L-1, or -1 at the embedding.
    site: the site of the layer, such as `attention`; `embedding` before the first layer.
  """

  layer: Annotated[int, msgspec.Meta(ge=-1)]
  site: str


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A number of depth positions with its confidence interval, or that there is none.

  None stands for nowhere in depth. Without an index it is either absent, or not localised: too many
  resamples have it to say that there is none, and too few, or at places too far apart, to name one.

  Attributes:
    index: the index of a depth position, or None where no place is claimed.
    lower: the lower bound of the confidence interval of `index`, or None.
    upper: the upper bound of the interval, or None.
    share: the share of the resamples that have an index, 0..1.
  """

  index: Count | None
  lower: Count | None
  upper: Count | None
  share: Share

  @property
  def is_claimed(self) -> bool:
    """Whether nearly all resamples have it, though it may be at different places."""
    return self.share >= CLAIMED_SHARE

  @property
  def is_absent(self) -> bool:
    """Whether nearly no resample has it, so that it is claimed to be nowhere."""
    return self.share <= 1 - CLAIMED_SHARE


@dataclasses.dataclass(frozen=True)
class Shift:
  """Where the lens stops to read the input token, and from where on it reads the next one.

  `resjax.study.analysis.shift` has the equations. A token is read where the lens says at least half
  as much of it as it says of the next token in the end.

  Attributes:
    departure: from where on the input token is not read; 0: it is read nowhere.
    onset: from where on the next token has a tenth of what it has in the end.
    emergence: from where on the next token has half of it, and is read.
    completion: from where on the next token has nine tenths of it.
    crossing: from where on the lens says more of the next token than of the input token, if one of
      both is read there.
    unread_crossing: the same if neither is read there.
    unread: the number of depth positions from departure to emergence, at which neither is read.
    level: the confidence level of the intervals, such as 0.95.
    num_bootstrap: the number of resamples of the rows.
  """

  departure: Estimate
  onset: Estimate
  emergence: Estimate
  completion: Estimate
  crossing: Estimate
  unread_crossing: Estimate
  unread: Estimate
  level: Share
  num_bootstrap: Count

  @property
  def any_crossing(self) -> Estimate:
    """The crossing of the kind that more resamples have, with the share of both kinds together."""
    kinds = self.crossing, self.unread_crossing
    more = max(kinds, key=lambda kind: kind.share)
    # A resample has one of both kinds; sums of shares may be rounded above 1.
    return dataclasses.replace(more, share=min(sum(kind.share for kind in kinds), 1.0))


ESTIMATES = tuple(field.name for field in dataclasses.fields(Shift) if field.type is Estimate)


@dataclasses.dataclass(frozen=True)
class Group:
  """Means over the tokens of one group.

  Attributes:
    num_tokens: the number of tokens.
    num_kl_tokens: the number of those tokens that `kl_to_final` is the mean of.
    metrics: the means of each metric, float64 [P], one per depth position; NaN without tokens.
    shifts: the shift of these tokens by each of `MEASURES` that they have; empty without tokens.
    standard_errors: the standard errors of the means, by metric [P], from how rows differ; NaN with
      less than two rows. The records of a run in progress have none.
  """

  num_tokens: int
  num_kl_tokens: int
  metrics: Mapping[str, np.ndarray]
  shifts: Mapping[str, Shift]
  standard_errors: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class DepthWeights:
  """The mean weight, over tokens and heads, with which each site reads each source.

  Attributes:
    readers: the sites that read, in order of depth; DepthPosition(L, "output") is the final read.
    sources: the names of the sources, such as `embedding` or `3 mlp`.
    weights: float64 [readers, sources]; 0 where the source comes later than the reader.
  """

  readers: tuple[DepthPosition, ...]
  sources: tuple[str, ...]
  weights: np.ndarray

  def running_sum(self) -> np.ndarray:
    """Returns the weight of the running sum in each read of the first depth block, in order.

    Reads that find no sum yet are left out; there are none where sources are no depth blocks. Where
    it is near 0 in all of them, the layers of that block read the embedding again: DepthBench
    (arXiv 2609.32534) calls it a dead segment.
    """
    if self.sources[1:2] != ("block 0",):
      return np.zeros(0)
    # The second read of the second block is the first one that finds another block.
    later = np.flatnonzero((self.weights[:, 2:] != 0).any(axis=1))
    return self.weights[1 : later[0] - 1 if len(later) else -1, 1]


@dataclasses.dataclass(frozen=True)
class Alignment:
  """The alignment of one model, measured on one corpus.

  The P depth positions are the embedding, and then the places behind every layer or every site. A
  hidden state h is read at a position in two ways. `closed` is the state as if the layers ended
  there (`Combinator.final_after`), and the embedding itself at the first position. `read` is what
  the next site reads (its view x), and the output of the layers at the last position.

  The metrics are means over groups of tokens, named in `GROUPS`. `all` has all tokens, and
  `distinct` those that differ from their next token. `decile_0` (most frequent) to `decile_9` hold
  about a tenth of the tokens each, by how often the next token occurs in the corpus, and are
  compared with random tokens of that decile. `balanced` has a shift alone, in which all deciles
  have the same weight (`shift.balanced_shifts`). `shuffled` has all tokens, but a token drawn by
  its frequency takes the place of the next token, and metrics that need its embedding are left
  out. A token counts if its next token lies in the same segment.

  These metrics come from the lens, the prediction softmax(head · final_norm(h)). Ranks count from 1
  and logarithms are natural:
    input_rank, next_rank              the rank of the input token and of the next token
    input_log_rank, next_log_rank      the logarithm of these ranks
    input_probability, next_probability
    next_nats                          -ln(next_probability), the loss of the lens
    entropy
    kl_to_final                        KL(final prediction ‖ lens), over every n-th token
    top1_is_input, top1_is_target      the share of tokens for which that token has rank 1
  And these come from h, the input embedding e of the token and the output embedding u of the next:
    cosine_input, cosine_next          cos(h, e), cos(h, u)
    cosine_input_normed, cosine_next_normed   cos(final_norm(h), e), cos(final_norm(h), u)
    projection_input, projection_next  ⟨h, e/‖e‖⟩, ⟨h, u/‖u‖⟩
    energy_share                       ‖P h‖² / ‖h‖², where P projects onto the span of e and u
    hidden_norm                        ‖h‖
    branch_norm                        ‖Σ outputs of the sites since the position before‖, and NaN
                                       at the embedding

  Attributes:
    model: the name of the model.
    corpus: the name of the corpus.
    num_rows: the number of rows of tokens that were read.
    positions: the P depth positions, in order.
    readings: the groups by name, for each reading that was measured.
    depth_weights: the weights of sources; None for a combinator that has none.
  """

  model: str
  corpus: str
  num_rows: int
  positions: tuple[DepthPosition, ...]
  readings: Mapping[str, Mapping[str, Group]]
  depth_weights: DepthWeights | None

  def to_json(self) -> str:
    """Returns the alignment as JSON, in which numbers that are not finite are null."""
    return json.dumps(to_plain(self), allow_nan=False)

  @classmethod
  def from_json(cls, text: str | bytes, where: str = "the alignment") -> "Alignment":
    """Returns the alignment that `to_json` wrote; null becomes NaN, other floats keep every bit.

    Raises:
      ValueError: it is something else; the message begins with `where`.
    """
    return typed_json.rebuild(text, StoredAlignment, StoredAlignment.alignment, where)


@dataclasses.dataclass(frozen=True)
class _StoredGroup:
  num_tokens: Count
  num_kl_tokens: Count
  metrics: dict[str, Values]
  shifts: dict[str, Shift]
  standard_errors: dict[str, Values] = dataclasses.field(default_factory=dict)

  def group(self, places: int) -> Group:
    """Returns the group, after checking that its metrics have one value per depth position."""
    for name, values in (*self.metrics.items(), *self.standard_errors.items()):
      if len(values) != places:
        raise ValueError(f"{name} has {len(values)} values for {places} positions")
    for measure, shift in self.shifts.items():
      for name in ESTIMATES:
        one = getattr(shift, name)
        at = one.index, one.lower, one.upper
        if any(index is not None and index >= places for index in at):
          raise ValueError(f"{name} by {measure} is at {at}, beyond the {places} positions")
    metrics, errors = (
      {name: np.array(values, np.float64) for name, values in found.items()}
      for found in (self.metrics, self.standard_errors)
    )
    return Group(self.num_tokens, self.num_kl_tokens, metrics, self.shifts, errors)


@dataclasses.dataclass(frozen=True)
class _StoredWeights:
  readers: tuple[DepthPosition, ...]
  sources: tuple[str, ...]
  weights: list[Values]

  def depth_weights(self) -> DepthWeights:
    values = matrix(self.weights, len(self.readers), len(self.sources), "depth_weights.weights")
    return DepthWeights(self.readers, self.sources, values)


@dataclasses.dataclass(frozen=True)
class StoredAlignment:
  """An alignment as JSON has it, see `Alignment`."""

  model: str
  corpus: str
  num_rows: Count
  positions: tuple[DepthPosition, ...]
  readings: dict[str, dict[str, _StoredGroup]]
  depth_weights: _StoredWeights | None

  def alignment(self) -> Alignment:
    """Returns the alignment that was stored, with arrays in place of lists.

    Raises:
      ValueError: its parts do not fit each other.
    """
    sites = [position.site for position in self.positions if position.layer == 0]
    layers = self.positions[-1].layer + 1 if self.positions else 0
    # The lengths are compared first, so that a large number of a layer costs nothing.
    fits = bool(sites) and len(self.positions) == 1 + layers * len(sites)
    expected = [(layer, site) for layer in range(layers * fits) for site in sites]
    if not fits or [(p.layer, p.site) for p in self.positions[1:]] != expected:
      raise ValueError("positions must be the embedding, and then the same sites of every layer")
    if self.positions[0].layer != -1 or not self.readings:
      raise ValueError("positions must begin with layer -1, and readings must not be empty")
    for reading, groups in self.readings.items():
      if "all" not in groups:
        raise ValueError(f"readings.{reading} has no group 'all'")
    readings = {
      reading: {name: group.group(len(self.positions)) for name, group in groups.items()}
      for reading, groups in self.readings.items()
    }
    weights = None if self.depth_weights is None else self.depth_weights.depth_weights()
    return Alignment(self.model, self.corpus, self.num_rows, self.positions, readings, weights)


def matrix(rows: list[Values], height: int, width: int, name: str) -> np.ndarray:
  """Returns rows of numbers as float64 [height, width]; null becomes NaN.

  Raises:
    ValueError: they have another size; the message names them.
  """
  if len(rows) != height or any(len(row) != width for row in rows):
    raise ValueError(f"{name} must have {height} rows of {width} numbers")
  return np.array(rows, np.float64).reshape(height, width)


def to_plain(value: Any) -> Any:
  """Returns dataclasses, arrays and tuples as dicts and lists, with None for inf and NaN."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
  if isinstance(value, np.ndarray):
    return to_plain(value.tolist())
  if isinstance(value, Mapping):
    return {key: to_plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [to_plain(item) for item in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value
