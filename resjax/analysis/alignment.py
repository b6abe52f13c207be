"""How hidden states turn from the input token to the next one along depth: the measured figures."""

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
STATE_METRICS = (  # of one state, without the prediction
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
class Position:
  """A place in depth: what stands there after a site.

  Attributes:
    layer: 0..L-1; -1 at the embedding.
    site: of that layer, such as `attention`; `embedding` before the first layer.
  """

  layer: int
  site: str


@dataclasses.dataclass(frozen=True)
class Switch:
  """Where the next token comes before the input token and stays there; see `switch_layer`.

  Attributes:
    index: of the depth position; None: nowhere.
    lower: lower bound of the confidence interval of `index`; None: nowhere.
    upper: its upper bound; None: nowhere.
    level: of the interval, such as 0.95.
    num_bootstrap: resamples of the rows.
    share: of the resamples that have a switch, 0..1.
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
    num_tokens: that were counted.
    num_kl_tokens: of those, the ones that `kl_to_final` is the mean of.
    metrics: name to means [P], one per depth position, float64; NaN where nothing was counted.
    switch: of these tokens; None where there are no tokens.
  """

  num_tokens: int
  num_kl_tokens: int
  metrics: Mapping[str, np.ndarray]
  switch: Switch | None


@dataclasses.dataclass(frozen=True)
class DepthWeights:
  """How much of each source the sites read, means over tokens (and heads).

  Attributes:
    readers: the sites that read, in order of depth; Position(L, "output") is the last read.
    sources: names of what they read, such as `embedding` or `3 mlp`.
    weights: [readers, sources], float64; 0 where the source comes later than the reader.
  """

  readers: tuple[Position, ...]
  sources: tuple[str, ...]
  weights: np.ndarray


@dataclasses.dataclass(frozen=True)
class Alignment:
  """The figures of one model on one corpus.

  P depth positions: the embedding, then one after every layer, or one after every site. Two
  readings of a position: `closed`, the state after it closed as if the layers ended there
  (`Combinator.final_after`); `read`, what the next site reads, view x, and at the last position the
  output of the layers. At the embedding `closed` is the embedding itself.

  Groups of tokens, in `GROUPS`: `all`; `distinct`, those whose next token is another one;
  `decile_0` (most frequent) .. `decile_9`, by how often the next token occurs in the corpus, about
  a tenth of the tokens each; `shuffled`, all tokens, but `next` in the names of the metrics is a
  token drawn by its frequency. The last has only the metrics that need no embedding of it.

  A token counts when the one behind it lies in the same segment.

  Metrics, means over tokens, by the lens softmax(head · final_norm(h)) (ranks from 1, nats):
    input_rank, next_rank              rank of the input token, of the next token
    input_log_rank, next_log_rank      its logarithm
    input_probability, next_probability
    next_nats                          −ln of the latter: the loss of the lens
    entropy
    kl_to_final                        KL(final prediction ‖ lens), over every n-th token
    top1_is_input, top1_is_target      share of tokens where it has rank 1
  and of h itself, with e the input embedding of the token and u the output embedding of the next:
    cosine_input, cosine_next          cos(h, e), cos(h, u)
    cosine_input_normed, cosine_next_normed   the same of final_norm(h)
    projection_input, projection_next  ⟨h, e/‖e‖⟩, ⟨h, u/‖u‖⟩
    energy_share                       ‖P h‖² / ‖h‖², P onto the span of e and u
    hidden_norm                        ‖h‖
    branch_norm                        ‖Σ outputs of the sites since the position before‖; at the
                                       embedding NaN

  Attributes:
    model: its name.
    corpus: its name.
    num_rows: rows of tokens that were read.
    positions: P, in order.
    readings: `closed` and `read`, or one of them, to groups by name.
    depth_weights: of combinators that weigh sources; None for the others.
  """

  model: str
  corpus: str
  num_rows: int
  positions: tuple[Position, ...]
  readings: Mapping[str, Mapping[str, Group]]
  depth_weights: DepthWeights | None

  def to_json(self) -> str:
    """Returns it as JSON; what is not finite is null."""
    return json.dumps(_plain(dataclasses.asdict(self)), allow_nan=False)

  @classmethod
  def from_json(cls, text: str) -> "Alignment":
    """Returns what `to_json` wrote; finite floats are the same to the last bit, null is NaN."""
    fields = json.loads(text)
    weights = fields["depth_weights"]
    return cls(
      **{name: fields[name] for name in ("model", "corpus", "num_rows")},
      positions=_positions(fields["positions"]),
      readings={
        reading: {name: _group(group) for name, group in groups.items()}
        for reading, groups in fields["readings"].items()
      },
      depth_weights=None if weights is None else _depth_weights(weights),
    )


def _plain(value: Any) -> Any:
  if isinstance(value, np.ndarray):
    return _plain(value.tolist())
  if isinstance(value, dict):
    return {key: _plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(item) for item in value]
  return None if isinstance(value, float) and not math.isfinite(value) else value


def _positions(items: list[dict]) -> tuple[Position, ...]:
  return tuple(Position(**item) for item in items)


def _array(values: list) -> np.ndarray:
  return np.array(values, np.float64)  # None becomes NaN


def _group(fields: dict) -> Group:
  switch = fields["switch"]
  return Group(
    num_tokens=fields["num_tokens"],
    num_kl_tokens=fields["num_kl_tokens"],
    metrics={name: _array(values) for name, values in fields["metrics"].items()},
    switch=None if switch is None else Switch(**switch),
  )


def _depth_weights(fields: dict) -> DepthWeights:
  return DepthWeights(
    _positions(fields["readers"]), tuple(fields["sources"]), _array(fields["weights"])
  )
