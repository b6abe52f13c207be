"""How every parameter and activation of a decoder lies, per set of rules, as the files say.

  python -m tests.base.sharding.golden_test      (writes the files anew; look at the difference)

The decoder has every kind of parameter: biases, learned positions, an output embedding, norms of
queries and keys and after sublayers, a site with a window, a value residual, and the matrices of a
combinator.
Activations are what `Layout.constrain` and `jax.shard_map` are asked for while the training loss is
traced, each under the function that asks.
"""

import inspect
import json
import pathlib

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from resjax.base.sharding import Layout
from resjax.models.config import ShortSWAConfig
from resjax.models.model_def import ModelDef
from tests.helpers import decoders, layouts
from tests.helpers.losses import text_loss

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "sharding"
MESHES = {
  "dp": {"data": 8},
  "fsdp": {"data": 2, "fsdp": 4},
  "fsdp_tp": {"data": 2, "fsdp": 2, "tensor": 2},
  "long_context": {"data": 1, "fsdp": 2, "tensor": 2, "sequence": 2},
}


@pytest.mark.parametrize("name", MESHES)
def test_shardings_are_the_golden_ones(name):
  want = json.loads((FOLDER / f"{name}.json").read_text())
  assert shardings(name) == want


def test_the_decoder_has_every_kind_of_parameter():
  paths = json.loads((FOLDER / "fsdp_tp.json").read_text())["parameters"]
  kinds = ("embed/positions", "output/embedding", "q_norm", "bias", "short_swa", "post_norms")
  for kind in (*kinds, "combinator"):
    assert any(kind in path for path in paths), kind
  assert "value_weights" in paths


def shardings(name):
  """Mesh axes of each axis of parameters by path, and of activations in the order of tracing."""
  layout = layouts.layout(name, **MESHES[name])
  model = ModelDef(config(), layout)
  flat = nnx.traversals.flatten_mapping(model.abstract, sep="/")
  parameters = {path: described(leaf.shape, leaf.sharding.spec) for path, leaf in flat.items()}
  return {"mesh": MESHES[name], "parameters": parameters, "activations": activations(model)}


def config():
  return decoders.config(
    "gpt2", "muddformer", vocab_size=32, d_model=32, num_heads=4, num_kv_heads=2, mlp_dim=48,
    positions="learned", tied_embeddings=False, qk_norm=True, value_residual="learned",
    short_swa=ShortSWAConfig(window=4, num_heads=2), dtype="bfloat16", post_norm=True,
    windows=(4, 0),
  )  # fmt: skip


def activations(model):
  """What is asked while the loss is traced; what a function asks again is told once."""
  asked = {}
  constrain, shard_map = Layout.constrain, jax.shard_map

  def recording_constrain(layout, x, *axes):
    y = constrain(layout, x, *axes)
    asked[f"{caller()}({', '.join(map(str, axes))})", described(x.shape, layout.spec(*axes))] = None
    return y

  def recording_shard_map(function, *, in_specs, out_specs, **options):
    specs = [str(spec) for spec in jax.tree.leaves((in_specs, out_specs), is_leaf=is_spec)]
    asked[f"{caller()}: shard_map", " ; ".join(specs)] = None
    return shard_map(function, in_specs=in_specs, out_specs=out_specs, **options)

  Layout.constrain, jax.shard_map = recording_constrain, recording_shard_map
  try:
    rows = jax.ShapeDtypeStruct((8, 32), jnp.int32)
    batch = dict.fromkeys(("inputs", "targets", "segment_ids", "positions"), rows)

    def loss(params, batch):
      return text_loss(model.bind(params), batch, 16)

    jax.eval_shape(loss, model.abstract, batch)
  finally:
    Layout.constrain, jax.shard_map = constrain, shard_map
  return [f"{what}  {how}" for what, how in asked]


def is_spec(leaf):
  return isinstance(leaf, jax.sharding.PartitionSpec)


def caller():
  """The function of resjax that asked, as module.function."""
  frame = inspect.currentframe().f_back.f_back
  return f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"


def described(shape, spec):
  """[8 data+fsdp, 16, 32 tensor]: sizes, and the mesh axes that split them."""
  axes = [*spec, *[None] * (len(shape) - len(spec))]
  names = ["+".join([a] if isinstance(a, str) else a or ()) for a in axes]
  return f"[{', '.join(f'{n} {name}'.strip() for n, name in zip(shape, names, strict=True))}]"


def main():
  FOLDER.mkdir(parents=True, exist_ok=True)
  for name in MESHES:
    (FOLDER / f"{name}.json").write_text(json.dumps(shardings(name), indent=2) + "\n")


if __name__ == "__main__":
  main()
