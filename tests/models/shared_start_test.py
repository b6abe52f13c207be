"""Models that differ in some parts begin with the same values of all others."""

import functools

import jax
import numpy as np
import pytest
from flax import nnx

from resjax.models.config import ShortSWAConfig
from resjax.models.decoder import Decoder
from resjax.models.model_def import ModelDef
from tests.helpers import decoders, layouts, walks

# `deepnorm` multiplies the first values of these by a factor of its own, as its paper says.
RESCALED = ("v_proj/kernel", "o_proj/kernel", "layers/mlp/")
FORMS = {
  "tied": {"tied_embeddings": True},
  "untied": {"tied_embeddings": False},
  "parallel": {"tied_embeddings": False, "parallel": True, "mlp": "gelu"},
  "gpt2": {"tied_embeddings": False, "style": "gpt2", "post_norm": True, "qk_norm": True},
}


def settings(residual="standard", style="llama", num_layers=3, **changes):
  return decoders.config(style, residual, num_layers=num_layers, init_std=0.02, **changes)


def start(*args, **changes):
  """The first values by path, apart from those of the combinator and its factor of branches."""
  model = Decoder(settings(*args, **changes), rngs=nnx.Rngs(0))
  flat = nnx.traversals.flatten_mapping(nnx.to_pure_dict(nnx.state(model)), sep="/")
  gain = model.combinator.branch_init_gain
  return {
    path: np.asarray(value) / (gain if any(part in path for part in RESCALED) else 1)
    for path, value in flat.items()
    if not path.startswith("combinator/")
  }


reference = functools.cache(lambda form: start(**FORMS[form]))


def compare(found, wanted, rtol=0.0):
  """Checks that what both have is alike; returns the paths that only one of them has."""
  for path in found.keys() & wanted.keys():
    np.testing.assert_allclose(found[path], wanted[path], rtol, err_msg=path)
  return found.keys() ^ wanted.keys()


@pytest.mark.parametrize("form", FORMS)
@walks.names(slow=("deepnorm", "attn_res", "deep_delta", "mhc", "muddformer", "siamese_norm"))
def test_every_system_starts_with_the_same_shared_parameters(name, form):
  rest = compare(start(name, **FORMS[form]), reference(form), 1e-6 * (name == "deepnorm"))
  # A system may have views with norms of their own, no norms before branches, or no final norm.
  assert all(path.startswith(("layers/norms/", "final_norm/")) for path in rest)


def test_parts_do_not_move_each_other():
  plain = reference("untied")
  assert compare(plain, reference("tied")) == {"output/embedding"}
  assert compare(reference("parallel"), plain) >= {"layers/mlp/gate_proj/kernel"}
  swa = ShortSWAConfig(window=4, num_heads=2, zero_init=False)
  assert len(compare(start(tied_embeddings=False, short_swa=swa), plain)) == 5  # 4 kernels, a norm
  deep = start(tied_embeddings=False, num_layers=4, scaled_output_init=False)
  first = {path: value[:3] for path, value in deep.items() if path.startswith("layers/")}
  compare(first, start(tied_embeddings=False, scaled_output_init=False))


def test_no_two_parameters_start_alike():
  drawn = {path: value for path, value in reference("gpt2").items() if np.ptp(value)}
  drawn |= {f"{path}[1]": value[1] for path, value in drawn.items() if path.startswith("layers/")}
  firsts = {path: value.ravel()[:4].tobytes() for path, value in drawn.items()}
  assert len(set(firsts.values())) == len(firsts) > 12


@pytest.mark.parametrize("name", ["standard", "depth_attention"])
@pytest.mark.slow
def test_devices_that_share_parameters_start_them_as_one_does(name):
  config = settings(name, d_model=32, num_heads=8, num_kv_heads=8, mlp_dim=32, vocab_size=32)
  split = ModelDef(config, layouts.layout("fsdp_tp", data=2, fsdp=2, tensor=2)).init(3)
  whole = ModelDef(config, layouts.layout("fsdp_tp", jax.devices()[:1])).init(3)
  jax.tree.map(np.testing.assert_array_equal, split, whole)
  jax.tree.map(np.testing.assert_array_equal, whole, ModelDef(config, layouts.layout()).init(3))
