"""What is measured is what float64 numpy finds in stored activations, on any devices."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from resjax.analysis.alignment import METRICS, READINGS
from resjax.analysis.groups import frequency_deciles
from resjax.analysis.measurement import measure
from resjax.analysis.probing import ProbeConfig
from resjax.combinators.base import OUTPUT
from tests.helpers import alignment, decoders

T = 16
SYSTEMS = {
  "standard": {},
  "attn_res": {},
  "block_attn_res": {"layers_per_block": 2},
  "muddformer": {},
}


def batch(rows=4, vocab=31):
  """Two documents per row, padding at the end of the first row, tokens that repeat."""
  rng = np.random.default_rng(0)
  tokens = np.minimum(rng.geometric(0.15, (rows, T)), vocab) - 1
  segment_ids = np.repeat([[1, 2]], T // 2, axis=1) * np.ones((rows, 1), int)
  segment_ids[0, -3:] = 0
  positions = np.tile(np.arange(T // 2), (rows, 2))
  found = {"inputs": tokens, "segment_ids": segment_ids, "positions": positions}
  return {key: np.asarray(value, np.int32) for key, value in found.items()}


def model(name, style="llama", **changes):
  return decoders.decoder(decoders.config(style, name, SYSTEMS.get(name, {}), **changes))


def measured(decoder, batches, **changes):
  config = ProbeConfig(every="site", readings=READINGS, chunk_size=8, kl_every=4)
  options = {"batch_size": len(batches[0]["inputs"]), "num_bootstrap": 50, "config": config}
  return measure(decoder, batches, model="a", corpus="b", **options | changes)


def check(group, want):
  assert set(group.metrics) == set(METRICS) == set(want)
  for name, values in want.items():
    np.testing.assert_allclose(group.metrics[name], values, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
  "name, style",
  [("standard", "gpt2"), ("block_attn_res", "llama")]
  + [pytest.param(name, "llama", marks=pytest.mark.slow) for name in ("attn_res", "muddformer")],
)
def test_figures_are_those_of_numpy_on_stored_activations(name, style):
  decoder, rows = model(name, style, tied_embeddings=name != "attn_res"), batch()
  found = measured(decoder, [rows])
  members = alignment.counted(rows)
  want = alignment.trajectories(decoder, rows, members, kl=lambda t: t % 4 == 2)
  for reading in READINGS:
    group = found.readings[reading]["all"]
    assert group.num_tokens == len(members)
    assert group.num_kl_tokens == sum(t % 4 == 2 for _, t in members)
    check(group, want[reading])
