"""Systems and a decoder, traced: their arrays have the axes that annotations say."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jaxtyping import TypeCheckError, jaxtyped

from resjax import combinators
from resjax.combinators import OUTPUT
from resjax.models import Decoder, generate, loss_sums
from resjax.models.losses import cross_entropy
from resjax.testing.toy import D
from tests.helpers import decoders
from tests.helpers.shapes import typed

B, T = 2, 3
X = jax.ShapeDtypeStruct((B, T, D), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((B, T), jnp.int32)


@pytest.mark.parametrize("name", combinators.names(shipped=True))
def test_a_system(name):
  c = combinators.build(name, num_layers=3, d_model=D, rngs=nnx.Rngs(0), scaled_init=True)

  def run(x):
    state = c.init(x)
    for layer in range(c.num_layers):
      for site in c.sites:
        views, tape = c.read(state, layer, site)
        c.depth_weights(state, layer, site)
        c.stream_factor(layer, site, views)
        state = c.write(state, layer, site, views["x"], normed=views, tape=tape)
        c.final_after(state, layer, site)
    c.depth_weights(state, c.num_layers, OUTPUT)
    return c.final(state)

  assert jax.eval_shape(run, X).shape == X.shape


@pytest.mark.parametrize("name", ["standard", "block_attn_res"])
def test_a_decoder(name):
  decoder = Decoder(decoders.config(residual=name), rngs=nnx.Rngs(0))

  def run(tokens):
    batch = {"targets": tokens, "segment_ids": tokens, "bytes": tokens[:, 0]}
    found = decoder.probe(lambda visits, seen: [visit.closed() for visit in visits], None, tokens)
    prompt = functools.partial(generate, decoder, tokens, key=jax.random.key(0))
    sampled = prompt(2, temperature=0.0), prompt(2, top_k=2, top_p=0.5, lengths=tokens[:, 0])
    hidden = decoder(tokens, tokens, tokens)
    return loss_sums(decoder, hidden, batch, 4), found.output, sampled

  sums, output, sampled = jax.eval_shape(run, TOKENS)
  assert sums.nats.shape == () and output.shape[:2] == (B, T)
  assert {rows.shape for rows in sampled} == {(B, T + 2)}


def test_a_loss():
  checked = functools.partial(jaxtyped(cross_entropy, typechecker=typed), chunk_size=4)
  arrays = jnp.zeros((B, T, D)), jnp.zeros((5, D)), jnp.zeros((B, T), int), jnp.ones((B, T))
  assert checked(*arrays).nats.shape == ()
  for at, wrong in ((0, jnp.zeros((B, T + 1, D))), (2, jnp.zeros((B, T))), (3, jnp.ones(T))):
    with pytest.raises(TypeCheckError):
      checked(*arrays[:at], wrong, *arrays[at + 1 :])
