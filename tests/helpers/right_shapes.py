"""Systems and a decoder, traced: their arrays have the axes that annotations say."""

import functools
import itertools

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
  def run(x):
    blocks = {"layers_per_block": 2} if "layers_per_block" in combinators.options(name) else {}
    sizes = {"num_layers": 2, "d_model": D, "rngs": nnx.Rngs(0)}
    c = combinators.build(name, scaled_init=True, **sizes, **blocks)
    state = c.init(x)
    for layer, site in itertools.product(range(c.num_layers), c.sites):
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
  def run(tokens):
    decoder = Decoder(decoders.config(residual=name, depth="loop"), rngs=nnx.Rngs(0))
    batch = {"targets": tokens, "segment_ids": tokens, "bytes": tokens[:, 0]}
    found = decoder.probe(lambda visits, seen: [visit.closed() for visit in visits], None, tokens)
    sample = {"key": jax.random.key(0), "lengths": tokens[:, 0], "top_k": 2, "top_p": 0.5}
    rows = generate(decoder, tokens, 2, **sample)
    return loss_sums(decoder, decoder(tokens, tokens, tokens), batch, 4), found.output, rows

  sums, output, rows = jax.eval_shape(run, TOKENS)
  assert sums.nats.shape == () and output.shape[:2] == (B, T) and rows.shape == (B, T + 2)


def test_a_loss():
  checked = functools.partial(jaxtyped(cross_entropy, typechecker=typed), chunk_size=4)
  arrays = jnp.zeros((B, T, D)), jnp.zeros((5, D)), jnp.zeros((B, T), int), jnp.ones((B, T))
  assert jax.eval_shape(checked, *arrays).nats.shape == ()
  for at, wrong in ((0, jnp.zeros((B, T + 1, D))), (2, jnp.zeros((B, T))), (3, jnp.ones(T))):
    with pytest.raises(TypeCheckError):
      checked(*arrays[:at], wrong, *arrays[at + 1 :])
