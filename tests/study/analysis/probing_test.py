"""Readings that are the same states are found in the combinator, and measured once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from launch.bench.program import hlo
from launch.bench.program.matrix_flops import matrix_flops
from resjax import combinators
from resjax.study.analysis.alignment import READINGS
from resjax.study.analysis.probing import ProbeConfig, probe_batch, reads_the_stream
from resjax.study.analysis.states import states
from tests.helpers import decoders

SAME = {
  "attenuation", "deepnorm", "gate", "gemma3n_laurel", "highway", "keel", "laurel", "layerscale",
  "rezero", "standard",
}  # fmt: skip


def test_systems_with_one_stream_read_what_is_closed():
  made = {
    name: combinators.build(name, num_layers=4, d_model=8, rngs=nnx.Rngs(0), scaled_init=True)
    for name in combinators.names()
  }
  found = {name for name, one in made.items() if reads_the_stream(one, jnp.bfloat16)}
  assert found == SAME


class _Doubled(combinators.Standard):
  """Starts with the embeddings and keeps one stream, of which a site reads twice the value."""

  def read(self, state, layer, site):
    views, tape = super().read(state, layer, site)
    return {"x": 2 * views["x"]}, tape


def test_a_view_that_is_not_the_stream_is_another_state():
  assert not reads_the_stream(_Doubled(num_layers=2, d_model=8), jnp.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(SAME), "unet_skips", "block_attn_res"])
def test_their_states_are_the_same(name):
  config = decoders.config("llama", name)
  decoder, tokens = decoders.decoder(config), decoders.tokens(config)
  closed, read = (
    np.stack(list(states(decoder, tokens, every="site", reading=one).values())) for one in READINGS
  )
  assert np.array_equal(closed, read) == (name in SAME)


def probed(name, readings, **changes):
  """Returns a compiled function of tokens that measures these readings of a decoder."""
  config = decoders.config("llama", name, **changes)
  decoder = decoders.decoder(config)
  graphdef, state = nnx.split(decoder)
  tokens = decoders.tokens(config)
  batch = {"inputs": tokens, "segment_ids": jnp.ones_like(tokens)}
  batch["positions"] = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

  @functools.partial(jax.jit, static_argnums=1)
  def sums(state, config):
    counts = jnp.ones(decoder.config.vocab_size, jnp.int32)
    made = nnx.merge(graphdef, state)
    return probe_batch(made, batch, counts, None, jax.random.key(0), config)

  return sums.lower(state, ProbeConfig(readings=readings, kl_every=4)).compile(), state


def test_the_same_states_are_measured_once():
  both, state = probed("standard", READINGS)
  one, _ = probed("standard", ("closed",))
  assert matrix_flops(hlo.parse(both.as_text())) == matrix_flops(hlo.parse(one.as_text()))
  found = jax.device_get(both(state))
  for part in (found.readings, found.kl):
    assert set(part) == set(READINGS)
    np.testing.assert_array_equal(part["closed"], part["read"])


@pytest.mark.parametrize("name", ["standard", "unet_skips"])
def test_the_products_are_counted(name):
  compiled, _ = probed(name, READINGS, vocab_size=4096)
  decoder = decoders.shapes(decoders.config("llama", name, vocab_size=4096))
  asked = ProbeConfig(readings=READINGS, kl_every=4)
  want = matrix_flops(hlo.parse(compiled.as_text())) / 24  # tokens
  # In the program every token attends to all, and there is a product for each candidate.
  assert want == pytest.approx(asked.flops_per_token(decoder, 12), rel=0.06)
