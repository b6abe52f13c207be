"""Meshes and layouts; the decoder on eight devices computes what it computes on one."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AxisType, PartitionSpec

from resjax.models.decoder import Decoder
from resjax.sharding import LOGICAL_AXES, MESH_AXES, Layout, MeshConfig, make_mesh
from tests.helpers import decoders, fast, layouts, walks
from tests.helpers.compare import assert_close

T = 11  # no other axis is as long
# A vocabulary for the two devices along `tensor`; weights that amplify no rounding.
SIZES = {"vocab_size": 32, "init_std": 0.1}


@pytest.fixture(scope="module")
def layout():
  return layouts.layout(data=2, fsdp=2, tensor=2)


def loss(graphdef, state, tokens):
  model = nnx.merge(graphdef, state)
  nll = -jax.nn.log_softmax(model.logits(model(tokens[:, :-1])))
  return jnp.mean(jnp.take_along_axis(nll, tokens[:, 1:, None], axis=-1))


def placed(state, layout):
  """The state with every parameter where the layout's rules put it."""

  def place(path, variable):
    axes = variable.get_metadata().get("axes", (None,) * variable[...].ndim)
    sharding = layout.parameter_sharding("/".join(map(str, path)), variable.shape, axes)
    return variable.replace(jax.device_put(variable[...], sharding))

  return nnx.map_state(place, state)


@walks.names("standard", "gate", "block_attn_res", "deep_delta", "muddformer", "mhc")
def test_loss_and_gradients_of_eight_devices_are_those_of_one(name, layout):
  config = decoders.config("llama", name, **SIZES)
  model = decoders.decoder(config)
  tokens = decoders.tokens(config, batch=4, length=T + 1)
  graphdef, state = nnx.split(model)
  want = fast.jit(jax.value_and_grad(functools.partial(loss, graphdef)))(state, tokens)

  sharded_def = nnx.split(nnx.eval_shape(lambda: Decoder(config, layout=layout, rngs=nnx.Rngs(0))))
  sharded_loss = functools.partial(loss, sharded_def[0])
  rows = jax.device_put(tokens, layout.sharding("batch", None))
  arguments = placed(state, layout), rows
  program = fast.jit(jax.value_and_grad(sharded_loss)).lower(*arguments).compile()
  assert_close(program(*arguments), want, 1e-5)
  assert gathered_activations(program.as_text()) == []


def gathered_activations(text):
  """Results of all-gathers in a compiled program that have an axis of T tokens, and features."""
  results = re.findall(r"= (.*) all-gather(?:-start)?\(", text)
  shapes = [tuple(map(int, d.split(","))) for r in results for d in re.findall(r"\[([\d,]+)\]", r)]
  return [shape for shape in shapes if T in shape and len(shape) > 2]


def test_a_gathered_source_would_be_seen(layout):
  x = jax.device_put(jnp.ones((4, T, 16)), layout.sharding("batch", "tokens", "embed"))
  whole = jax.jit(lambda x: 2 * x, out_shardings=layout.sharding(None, None, None))
  assert gathered_activations(whole.lower(x).compile().as_text()) == [(4, T, 16)]


def test_parameters_are_really_split(layout):
  _, state = nnx.split(decoders.decoder(decoders.config(**SIZES)))
  flat = nnx.to_pure_dict(placed(state, layout))
  kernel = flat["layers"]["mlp"]["up_proj"]["kernel"]  # [L, D, F]
  assert kernel.sharding.spec == PartitionSpec(None, ("fsdp",), ("tensor",))
  assert kernel.addressable_shards[0].data.shape == (3, 16 // 2, 24 // 2)
  assert flat["embed"]["embedding"].addressable_shards[0].data.shape == (32 // 2, 16 // 2)


@pytest.mark.parametrize(
  "config, sizes",
  [
    (MeshConfig(), (8, 1, 1, 1)),
    (MeshConfig(data=2, fsdp=2, tensor=2), (2, 2, 2, 1)),
    (MeshConfig(data=2, fsdp=-1), (2, 4, 1, 1)),
    (MeshConfig(data=1, tensor=2, sequence=-1), (1, 1, 2, 4)),
  ],
)
def test_mesh(config, sizes):
  mesh = make_mesh(config)
  assert mesh.axis_names == MESH_AXES and mesh.devices.shape == sizes
  assert set(mesh.axis_types) == {AxisType.Auto}


@pytest.mark.parametrize(
  "config",
  [
    MeshConfig(data=3),
    MeshConfig(data=4),
    MeshConfig(data=-1, fsdp=-1),
    MeshConfig(data=-1, fsdp=3),
    MeshConfig(data=-1, fsdp=16),
    MeshConfig(data=-1, fsdp=0),
    MeshConfig(data=-2, fsdp=-4),
  ],
)
def test_meshes_that_do_not_fit_are_refused(config):
  with pytest.raises(ValueError, match=rf"'data': {config.data}.* does not fit 8 devices"):
    make_mesh(config)


def test_mesh_of_some_devices():
  devices = jax.devices()[2:4]
  assert list(make_mesh(MeshConfig(), devices).devices.flat) == devices
  with pytest.raises(ValueError, match="does not fit 2 devices"):
    make_mesh(MeshConfig(data=8), devices)


def test_no_mesh_constrains_nothing():
  layout, x = Layout(), jnp.ones((2, 3))
  assert layout.constrain(x, "batch", "embed") is x
  assert layout.num_shards("batch") == 1
  assert layout.platform == jax.default_backend()


def test_constrain_splits_activations(layout):
  x = jax.jit(lambda x: layout.constrain(x, "batch", "tokens", "heads", None))(
    jnp.ones((4, 6, 2, 5))
  )
  assert {shard.data.shape for shard in x.addressable_shards} == {(1, 6, 1, 5)}


def test_number_of_shards_and_specs(layout):
  counts = {axis: layout.num_shards(axis) for axis in LOGICAL_AXES}
  assert counts == {
    "batch": 4, "tokens": 1, "embed": 1, "layers": 1, "embed_param": 2, "vocab": 2, "heads": 2,
    "mlp": 2,
  }  # fmt: skip
  assert layout.spec("batch", None, "embed") == PartitionSpec(("data", "fsdp"), None, None)
  assert layout.platform == "cpu"


@pytest.mark.parametrize(
  "shape, axes, message",
  [
    ((3, 16, 25), ("embed_param", "mlp"), r"a/b: axis 'mlp' of size 25.*by 2.*along tensor"),
    ((3, 15, 24), ("embed_param", "mlp"), r"axis 'embed_param' of size 15.*by 2.*along fsdp"),
    ((31, 16), ("vocab", "embed_param"), r"axis 'vocab' of size 31.*config\.mesh"),
  ],
)
def test_parameters_that_do_not_divide_are_refused(layout, shape, axes, message):
  with pytest.raises(ValueError, match=message):
    layout.parameter_sharding("a/b", shape, axes)


def test_stacked_parameters_have_an_axis_of_layers(layout):
  stacked = layout.parameter_sharding("w", (3, 16, 24), ("embed_param", "mlp"))
  assert stacked.spec == PartitionSpec(None, ("fsdp",), ("tensor",))
  plain = layout.parameter_sharding("w", (16, 24), (None, None))
  assert plain.is_fully_replicated
