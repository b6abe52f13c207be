"""Alignments with figures as models have them, made up: for what shows them."""

import numpy as np

from resjax.study.analysis.alignment import (
  DECILES,
  GROUPS,
  METRICS,
  READINGS,
  Alignment,
  DepthPosition,
  DepthWeights,
  Estimate,
  Group,
  Shift,
)

SITES = ("attention", "mlp")


def alignment(
  model="tiny, step 300",
  corpus="tiny, validation",
  num_layers=6,
  sites=SITES,
  depth_weights=False,
  seed=0,
) -> Alignment:
  """One with a position after each of some sites; its next token emerges near 0.75 of the depth."""
  positions = (
    DepthPosition(-1, "embedding"),
    *(DepthPosition(layer, site) for layer in range(num_layers) for site in sites),
  )
  rng = np.random.default_rng(seed)
  readings = {
    reading: {name: _group(name, len(positions), shift, rng) for name in GROUPS}
    for reading, shift in zip(READINGS, (0.6, 0.65), strict=True)
  }
  weights = _depth_weights(num_layers, rng) if depth_weights else None
  return Alignment(model, corpus, 64, positions, readings, weights)


def _group(name: str, num_positions: int, middle: float, rng) -> Group:
  x = np.linspace(0, 1, num_positions)
  late = 1 / (1 + np.exp(-12 * (x - middle)))  # from input to next token
  if name in DECILES:
    late = late * (1 - 0.06 * DECILES.index(name))
  if name == "shuffled":
    late = 0 * late
  noise = rng.uniform(0.95, 1.05, num_positions)
  metrics = {
    "input_log_rank": 6 * (1 - (1 - late) ** 2) * noise,
    "next_log_rank": 6.5 - 4.5 * late * noise,
    "input_probability": 0.95 * (1 - late) ** 3,
    "next_probability": 0.45 * late**3 * noise,
    "next_nats": 9 - 6 * late,
    "entropy": 1 + 6 * late * (1 - late) * 4 + 2 * late,
    "kl_to_final": 5 * (1 - late) ** 2,
    "top1_is_input": (1 - late) ** 2,
    "top1_is_target": 0.5 * late**2,
    "cosine_input": 1 - 0.9 * x,
    "cosine_input_normed": 0.95 - 0.9 * x,
    "cosine_next": 0.3 * late,
    "cosine_next_normed": 0.35 * late,
    "projection_input": 1 + x,
    "projection_next": 3 * late,
    "energy_share": 1 - 0.85 * x,
    "hidden_norm": np.exp(3 * x),
    "branch_norm": np.where(x == 0, np.nan, np.exp(2.5 * x) * noise),
  }
  metrics |= {f"{kind}_rank": 2 * np.exp(metrics[f"{kind}_log_rank"]) for kind in ("input", "next")}
  if name == "shuffled":  # no embedding of the drawn token is looked at
    needed = ("cosine_next", "projection_next", "energy_share")
    metrics = {key: value for key, value in metrics.items() if not key.startswith(needed)}
    shift = shift_at(None, None, num_positions)
  else:
    read = 0.5 * metrics["next_probability"][-1]
    lost = int(np.argmax(metrics["input_probability"] < read))
    shift = shift_at(lost, int(np.argmax(metrics["next_probability"] >= read)), num_positions)
    assert set(metrics) == set(METRICS)
  tokens = 1638 if name in DECILES else 16_320
  return Group(tokens, tokens // 8, metrics, {"probability": shift, "log_rank": shift})


def shift_at(departure, emergence, num_positions) -> Shift:
  """A shift with these estimates, and one position to each side as intervals; None: no shift."""

  def estimate(index):
    if index is None:
      return Estimate(None, None, None, 0.0)
    return Estimate(index, max(index - 1, 0), min(index + 1, num_positions - 1), 1.0)

  known = emergence is not None
  unread = max(emergence - departure, 0) if known and departure is not None else None
  onset, completion = (emergence - 1, num_positions - 1) if known else (None, None)
  places = departure, onset, emergence, completion, emergence, None, unread
  return Shift(*map(estimate, places), level=0.95, num_bootstrap=1000)


def _depth_weights(num_layers: int, rng) -> DepthWeights:
  """Of `attn_res`: every site reads the embedding and all earlier outputs."""
  readers = [DepthPosition(layer, site) for layer in range(num_layers) for site in SITES]
  sources = ("embedding", *(f"{reader.layer} {reader.site}" for reader in readers))
  logits = rng.normal(size=(len(sources), len(sources)))
  logits[np.triu_indices(len(sources), 1)] = -np.inf
  weights = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
  return DepthWeights((*readers, DepthPosition(num_layers, "output")), sources, weights)
