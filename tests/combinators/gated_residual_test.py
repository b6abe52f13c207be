"""What Gated Residual does to streams, and to a decoder that leaves the norms to it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from resjax.nn.norm import Identity
from resjax.testing import toy
from tests.helpers import decoders

SITES = ("mlp",)
LAYERS, X = toy.layers(2, SITES), toy.embeddings()


def fresh(name, options=None):
  return toy.build(name, options or {}, num_layers=2, sites=SITES, random=False)


def test_every_stream_of_a_fresh_one_is_the_stream_of_standard():
  states = jax.jit(lambda made: list(toy.states_by_hand(made, LAYERS, X)))
  for streams, want in zip(states(fresh("gated_residual")), states(fresh("standard")), strict=True):
    np.testing.assert_allclose(streams, np.stack([want] * 4), rtol=1e-5, atol=1e-6)


def test_streams_part_from_the_second_update_on():
  graphdef, params = nnx.split(fresh("gated_residual"))
  optimizer = optax.adam(0.1)
  moments = optimizer.init(params)

  def loss(params):
    *_, streams = toy.states_by_hand(made := nnx.merge(graphdef, params), LAYERS, X)
    return jnp.vdot(made.final(streams), toy.cotangent(X.shape)), jnp.ptp(streams, axis=0).max()

  @jax.jit
  def step(params, moments):
    (_, spread), gradient = jax.value_and_grad(loss, has_aux=True)(params)
    updates, moments = optimizer.update(gradient, moments)
    return optax.apply_updates(params, updates), moments, spread

  spreads = []
  for _ in range(4):
    params, moments, spread = step(params, moments)
    spreads.append(float(spread))
  assert max(spreads[:2]) < 1e-5 and min(spreads[2:]) > 1e-3


@pytest.mark.parametrize(
  "changes",
  [
    {"parallel": True},
    pytest.param({"post_norm": True, "value_residual": "learned"}, marks=pytest.mark.release),
  ],
  ids=str,
)
def test_a_decoder_has_no_norm_but_those_of_outputs(changes):
  """It has no norms before branches and none at the end; the embedding is read as the end is."""
  config = decoders.config("llama", "gated_residual", **changes)
  decoder, tokens = decoders.decoder(config), decoders.tokens(config)
  paths = nnx.traversals.flatten_mapping(nnx.to_pure_dict(nnx.state(decoder)), sep="/")
  norms = {path.split("/")[-3] for path in paths if path.endswith("scale")}
  assert norms == ({"post_norms"} if config.post_norm else set())
  assert isinstance(decoder.final_norm, Identity)

  @nnx.jit
  def run(decoder, tokens):
    found = decoder.probe(lambda visits, _: visits[-1].closed(), None, tokens)
    made, positions = decoder.combinator, jnp.arange(tokens.shape[1])[None]
    return found, decoder(tokens), made.final(made.init(decoder.embed(tokens, positions)))

  found, output, embedded = run(decoder, tokens)
  np.testing.assert_array_equal(found.output, output)
  np.testing.assert_allclose(found.layers[-1], output, atol=1e-6)
  np.testing.assert_allclose(found.embedded, embedded, atol=1e-5)
