"""A decoder that is built to copy the input token up to a layer and to say the next one from there.

Tokens follow one another in a cycle. D = 2 V: the embedding of a token is one in the first half,
and the output embedding one in both. MLPs read the first half; from layer s on they write the next
token into the second half, twice as strong as the first.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax.study.analysis.alignment import READINGS
from resjax.study.analysis.measurement import measure
from resjax.study.analysis.probing import ProbeConfig, probe_batch
from resjax.study.analysis.token_groups import frequency_deciles
from resjax.study.analysis.totals import Totals
from tests.helpers import decoders

V, ROWS, T = 12, 6, 16
CONFIG = ProbeConfig(readings=READINGS)


def decoder(name, num_layers, switch):
  """Makes the decoder; its layers below `switch` write nothing."""
  config = decoders.config(
    "gpt2", name, {"layers_per_block": 2} if name == "block_attn_res" else {}, bias="none",
    positions="rope", norm="rmsnorm", vocab_size=V, num_layers=num_layers, d_model=2 * V, mlp_dim=V,
    tied_embeddings=False,
  )  # fmt: skip
  made = decoders.decoder(config, random=False)
  one, none = np.eye(V, dtype=np.float32), np.zeros((V, V), np.float32)
  made.embed.embedding[...] = np.concatenate([one, none], axis=1)
  made.output.embedding[...] = np.concatenate([one, one], axis=1)
  mlp, attention = made.layers.mlp, made.layers.attention
  attention.o_proj.kernel[...] = np.zeros_like(attention.o_proj.kernel[...])
  mlp.up_proj.kernel[...] = np.tile(np.concatenate([one, none]), (num_layers, 1, 1))
  written = 2 * np.concatenate([none, np.roll(one, 1, axis=1)], axis=1)
  writes = (np.arange(num_layers) >= switch)[:, None, None]
  mlp.down_proj.kernel[...] = np.where(writes, written, 0).astype(np.float32)
  return made


def batch():
  """Returns rows of the cycle that start at different tokens; the second has two documents."""
  tokens = (np.arange(ROWS)[:, None] * 5 + np.arange(T)) % V
  segment_ids, positions = np.ones_like(tokens), np.tile(np.arange(T), (ROWS, 1))
  segment_ids[1, 9:], positions[1, 9:] = 2, np.arange(T - 9)
  tokens[1, 9:] = (tokens[1, 9:] + 3) % V
  found = {"inputs": tokens, "segment_ids": segment_ids, "positions": positions}
  return {key: np.asarray(value, np.int32) for key, value in found.items()}


def check(found, switch):
  """The switch is after layer `switch`, or nowhere if `switch` is the number of layers."""
  places = np.arange(len(found.positions))
  nowhere = switch == places[-1]
  for groups in found.readings.values():
    for name, group in groups.items():
      if name == "shuffled" or (nowhere and group.num_tokens):
        assert group.switch.index is None and group.switch.share == 0
      elif group.num_tokens:
        index = switch + 1  # Positions start at the embedding.
        assert group.switch.index == index and found.positions[index].layer == switch
        assert (group.switch.lower, group.switch.upper) == (index, index)
    metrics = groups["all"].metrics
    np.testing.assert_array_equal(metrics["top1_is_input"], places <= switch)
    np.testing.assert_array_equal(metrics["top1_is_target"], places > switch)


@pytest.mark.parametrize(
  ("name", "num_layers"),
  [("standard", 12), pytest.param("block_attn_res", 4, marks=pytest.mark.release)],
)
def test_the_switch_is_measured_where_it_is(name, num_layers):
  graphdef, _ = nnx.split(decoder(name, num_layers, 0))
  counts = np.full(V, 10, np.int32)
  deciles = frequency_deciles(counts)

  rows = jax.tree.map(jnp.asarray, batch())

  @jax.jit
  def step(state, key):
    return probe_batch(nnx.merge(graphdef, state), rows, counts, deciles, key, CONFIG)

  for switch in range(num_layers + 1):
    made, totals = decoder(name, num_layers, switch), Totals()
    for key in jax.random.split(jax.random.key(switch), 2):
      totals.add(jax.device_get(step(nnx.state(made), key)))
    options = {"num_bootstrap": 100, "level": 0.95, "seed": 0}
    check(totals.alignment("a", "b", CONFIG, made.combinator, **options), switch)


@pytest.mark.slow
@pytest.mark.parametrize("switch", [2, 4])
def test_measure_finds_it_and_no_switch_where_there_is_none(switch):
  check(measured(decoder("standard", 4, switch)), switch)


def measured(made):
  return measure(made, [batch()], batch_size=ROWS, model="a", corpus="b", config=CONFIG)
