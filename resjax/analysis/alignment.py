"""The alignment of a model: how its hidden states turn from the input token to the next token."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

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
GROUPS = ("all", "distinct", *DECILES, "shuffled")


@dataclasses.dataclass(frozen=True)
class DepthPosition:
  """A position along depth: the embedding, or the place behind a site of a layer.

  Attributes:
    layer: 0..L-1, or -1 at the embedding.
    site: the site of the layer, such as `attention`; `embedding` before the first layer.
  """

  layer: int
  site: str


@dataclasses.dataclass(frozen=True)
class Switch:
  """The depth position from which on the next token ranks before the input token.

  `resjax.analysis.switch_layer` defines it. None stands for nowhere in depth.

  Attributes:
    index: the index of the depth position, or None.
    lower: the lower bound of the confidence interval of `index`, or None.
    upper: the upper bound of the interval, or None.
    level: the confidence level of the interval, such as 0.95.
    num_bootstrap: the number of resamples of the rows.
    share: the share of the resamples that have a switch, 0..1.
  """

  index: int | None
  lower: int | None
  upper: int | None
  level: float
  num_bootstrap: int
  share: float


@dataclasses.dataclass(frozen=True)
class Group:
  """Means over the tokens of one group.

  Attributes:
    num_tokens: the number of tokens.
    num_kl_tokens: the number of those tokens that `kl_to_final` is the mean of.
    metrics: the means of each metric, float64 [P], one per depth position; NaN without tokens.
    switch: the switch of these tokens; None if there are no tokens.
  """

  num_tokens: int
  num_kl_tokens: int
  metrics: Mapping[str, np.ndarray]
  switch: Switch | None


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


@dataclasses.dataclass(frozen=True)
class Alignment:
  """The alignment of one model, measured on one corpus.

  The P depth positions are the embedding, and then the places behind every layer or every site. A
  hidden state h is read at a position in two ways. `closed` is the state as if the layers ended
  there (`Combinator.final_after`), and the embedding itself at the first position. `read` is what
  the next site reads (its view x), and the output of the layers at the last position.

  The metrics are means over groups of tokens, named in `GROUPS`. `all` has all tokens, and
  `distinct` those that differ from their next token. `decile_0` (most frequent) to `decile_9` hold
  about a tenth of the tokens each, by how often the next token occurs in the corpus. `shuffled` has
  all tokens, but a token drawn by its frequency takes the place of the next token, and metrics that
  need its embedding are left out. A token counts if its next token lies in the same segment.

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
  def from_json(cls, text: str) -> "Alignment":
    """Returns the alignment that `to_json` wrote; null becomes NaN, other floats keep every bit."""
    return cls.from_plain(json.loads(text))

  @classmethod
  def from_plain(cls, fields: Mapping[str, Any]) -> "Alignment":
    """Returns the alignment that `to_plain` turned into dicts."""
    weights = fields["depth_weights"]
    if weights is not None:
      sources, values = tuple(weights["sources"]), np.array(weights["weights"], np.float64)
      weights = DepthWeights(_positions(weights["readers"]), sources, values)
    readings = {
      reading: {name: _group(group) for name, group in groups.items()}
      for reading, groups in fields["readings"].items()
    }
    positions = _positions(fields["positions"])
    return cls(fields["model"], fields["corpus"], fields["num_rows"], positions, readings, weights)


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


def _positions(items: list[dict[str, Any]]) -> tuple[DepthPosition, ...]:
  return tuple(DepthPosition(**item) for item in items)


def _group(fields: dict[str, Any]) -> Group:
  metrics = {name: np.array(values, np.float64) for name, values in fields["metrics"].items()}
  switch = None if fields["switch"] is None else Switch(**fields["switch"])
  return Group(fields["num_tokens"], fields["num_kl_tokens"], metrics, switch)
