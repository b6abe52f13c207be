"""The state that is closed after a layer is the output of a decoder that has no later layers."""

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators
from resjax.models.decoder import Decoder
from resjax.testing.compare import assert_close
from tests.helpers import decoders, walks

L = 3
# Where the number of layers would decide more than how many there are, options that leave that out.
OPTIONS = {
  "attenuation": lambda num_layers: {"layers": tuple(range(0, num_layers, 2)), "alpha": 0.5},
  "block_attn_res": lambda num_layers: {"layers_per_block": min(2, num_layers)},
  "deepnorm": lambda num_layers: {"alpha": 1.5},
  "delta_block_attn_res": lambda num_layers: {"layers_per_block": min(2, num_layers)},
  "depth_attention": lambda num_layers: {"window": 2},
  "keel": lambda num_layers: {"alpha": 1.5},
  "mhc": lambda num_layers: {"sinkhorn_iterations": 3},  # each is compiled
}
OUT_OF_SCOPE = ("unet_skips",)  # which layers add a skip goes by L: they are halves of a U
# Parameters with a row per source, the newest source last; of all others the first rows are taken.
NEWEST = {"muddformer": ("final_output", "final_bias")}
NAMES = tuple(name for name in combinators.names() if name not in OUT_OF_SCOPE)


def config(name, num_layers):
  options = OPTIONS.get(name, lambda num_layers: {})(num_layers)
  return decoders.config("llama", name, options, num_layers=num_layers)


def truncated(decoder, num_layers):
  """A decoder of the first layers, by its own class, with their parameters."""
  name = decoder.config.residual.name
  made = nnx.eval_shape(lambda: Decoder(config(name, num_layers), rngs=nnx.Rngs(0)))
  graphdef, template = nnx.split(made)

  def part(path, wanted, whole):
    newest = path[0].key == "combinator" and path[1].key in NEWEST.get(name, ())
    first = slice(-wanted.shape[0], None) if newest else slice(wanted.shape[0])
    return whole[(first, *map(slice, wanted.shape[1:]))]

  return nnx.merge(graphdef, jax.tree.map_with_path(part, template, nnx.state(decoder)))


@walks.names("standard", "block_attn_res", "denseformer", among=NAMES)
def test_closed_is_the_output_of_the_first_layers(name):
  whole = decoders.drawn(config(name, L))
  tokens = decoders.tokens(whole.config)

  @jax.jit
  def closed(state):
    decoder = nnx.merge(nnx.graphdef(whole), state)
    found = decoder.probe(lambda visits, seen: visits[-1].closed(), None, tokens).layers
    return decoder.final_norm(found)

  found = closed(nnx.state(whole))
  assert found.shape == (L, *tokens.shape, 16)
  for layer in range(L - 1):  # the last one is the decoder itself
    ended = truncated(whole, layer + 1)
    graphdef, state = nnx.split(ended)
    want = jax.jit(lambda state, graphdef=graphdef: nnx.merge(graphdef, state)(tokens))(state)
    assert_close(found[layer], want, 1e-5)
  assert not jnp.allclose(found[0], found[-1], atol=0.1)
