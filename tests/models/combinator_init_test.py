"""Zero, one-hot and identity inits survive the decoder: its init is not the combinator's."""

import jax
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.models.model_def import ModelDef
from tests.helpers import decoders, layouts, walks

_BUILD = combinators.build


def made(name, monkeypatch, **changes):
  """Parameters of a decoder's combinator, and of one built alone with the same random numbers."""
  alone = []

  def build(*args, rngs, **options):
    alone.append(_BUILD(*args, rngs=nnx.clone(rngs), **options))
    return _BUILD(*args, rngs=rngs, **options)

  with monkeypatch.context() as patch:
    patch.setattr(combinators, "build", build)  # what the decoder calls
    config = decoders.config(residual=name, options=combinators.options(name), **changes)
    decoder = decoders.decoder(config, random=False)
  return parameters(decoder.combinator), parameters(alone[0])


def parameters(combinator):
  return nnx.to_pure_dict(nnx.state(combinator, nnx.Param))


@walks.names(
  "deepnorm", "gated_residual", "block_attn_res", "mhc", "muddformer", others=pytest.mark.slow
)
def test_decoder_leaves_the_init_to_the_combinator(name, monkeypatch):
  inside, alone = made(name, monkeypatch, init_std=0.02)
  other, _ = made(name, monkeypatch, init_std=5.0, scaled_output_init=False)
  for wants in (alone, other):
    assert jax.tree.structure(wants) == jax.tree.structure(inside)
    jax.tree.map(np.testing.assert_array_equal, inside, wants)


@pytest.mark.parametrize("name", ["hyper_connections", "mhc", "gated_residual", "highway"])
def test_no_parameter_has_a_weak_type(name):
  """The first step would be compiled for it, and the second one again, for what it returns."""
  config = decoders.config(residual=name, options=combinators.options(name))
  model = ModelDef(config, layouts.layout(devices=jax.devices()[:1]))
  made = jax.eval_shape(model.init_program(), jax.random.key(0))
  assert not [leaf for leaf in jax.tree.leaves(made) if leaf.weak_type]
