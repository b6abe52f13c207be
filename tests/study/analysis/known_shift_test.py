"""A decoder that is built to lose its input token after a layer, and to say the next one later.

Tokens follow one another in a cycle. D = 2 V: the embedding of a token is one in both halves, and
the head reads the second one. MLPs read the first half; one layer takes the token out of the second
half, and from another one on they write the next token into it.
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


def decoder(name, num_layers, lost, emerges):
  """Makes the decoder; either layer may be `num_layers`, which is none of its layers."""
  config = decoders.config(
    "gpt2", name, {"layers_per_block": 2} if name == "block_attn_res" else {}, bias="none",
    positions="rope", norm="rmsnorm", vocab_size=V, num_layers=num_layers, d_model=2 * V, mlp_dim=V,
    tied_embeddings=False,
  )  # fmt: skip
  made = decoders.decoder(config, random=False)
  one, none = np.eye(V, dtype=np.float32), np.zeros((V, V), np.float32)
  # Other tokens are ranked too: of equal logits all have the best rank, which says nothing.
  some = np.linspace(0.5, 0, V - 1)
  shown = np.stack([np.roll([2, *some[::-1]], token) for token in range(V)])
  written = np.stack([np.roll([9, *some], token + 1) for token in range(V)])
  made.embed.embedding[...] = np.concatenate([30 * one, shown], axis=1)
  made.output.embedding[...] = np.concatenate([none, 30 * one], axis=1)
  mlp, attention = made.layers.mlp, made.layers.attention
  attention.o_proj.kernel[...] = np.zeros_like(attention.o_proj.kernel[...])
  mlp.up_proj.kernel[...] = np.tile(np.concatenate([one, none]), (num_layers, 1, 1))
  layers = np.arange(num_layers)[:, None, None]
  taken = -3 * (one + np.roll(one, 1, axis=1))  # the token and the next one
  says = taken * (layers == lost) + written * (layers >= emerges)
  mlp.down_proj.kernel[...] = np.concatenate([0 * says, says], axis=2)
  return made


def batch():
  """Returns rows of the cycle that start at different tokens; the second has two documents."""
  tokens = (np.arange(ROWS)[:, None] * 5 + np.arange(T)) % V
  segment_ids, positions = np.ones_like(tokens), np.tile(np.arange(T), (ROWS, 1))
  segment_ids[1, 9:], positions[1, 9:] = 2, np.arange(T - 9)
  tokens[1, 9:] = (tokens[1, 9:] + 3) % V
  found = {"inputs": tokens, "segment_ids": segment_ids, "positions": positions}
  return {key: np.asarray(value, np.int32) for key, value in found.items()}


def check(found, lost, emerges):
  """Asserts after which layers the input token is lost and the next token emerges."""
  end = len(found.positions) - 1
  for groups in found.readings.values():
    for name, group in groups.items():
      for kind, one in group.shifts.items():
        if kind in ("cosine", "projection"):  # not what it is built for
          continue
        if name == "shuffled" or emerges == end:
          assert one.emergence.index is None and one.departure.index is None
          assert one.emergence.share < 0.95 and one.unread.index is None
          continue
        at = one.emergence.index
        if at is None:  # Of few tokens some resamples have none.
          assert name == "balanced" or group.num_tokens < 10
          continue
        assert at == emerges + 1 and found.positions[at].layer == emerges  # 0 is the embedding
        assert (one.emergence.lower, one.emergence.upper) == (at, at)
        assert one.departure.index == lost + 1 and one.unread.index == emerges - lost


@pytest.mark.parametrize(
  ("name", "num_layers"),
  [("standard", 6), pytest.param("block_attn_res", 4, marks=pytest.mark.release)],
)
def test_the_shift_is_measured_where_it_is(name, num_layers):
  graphdef, _ = nnx.split(decoder(name, num_layers, 0, 0))
  counts = np.full(V, 10, np.int32)
  deciles = frequency_deciles(counts)

  rows = jax.tree.map(jnp.asarray, batch())

  @jax.jit
  def step(state, key):
    return probe_batch(nnx.merge(graphdef, state), rows, counts, deciles, key, CONFIG)

  for lost in range(num_layers):
    for emerges in range(lost, num_layers + 1):
      made, totals = decoder(name, num_layers, lost, emerges), Totals()
      for key in jax.random.split(jax.random.key(lost), 2):
        totals.add(jax.device_get(step(nnx.state(made), key)))
      options = {"num_bootstrap": 100, "level": 0.95, "seed": 0}
      check(totals.alignment("a", "b", CONFIG, made.combinator, **options), lost, emerges)


@pytest.mark.slow
@pytest.mark.parametrize("emerges", [2, 4])
def test_measure_finds_it_and_no_shift_where_there_is_none(emerges):
  check(measured(decoder("standard", 4, 1, emerges)), 1, emerges)


def measured(made):
  return measure(made, [batch()], batch_size=ROWS, model="a", corpus="b", config=CONFIG)
