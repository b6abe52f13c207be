"""What a layout asks of the compiler, and of whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from resjax.base.sharding import (
  LOGICAL_AXES,
  Layout,
  MeshConfig,
  Rules,
  ShardingConfig,
  make_layout,
)
from resjax.models.model_def import ModelDef
from resjax.models.parameters import Parameter, failures
from tests.helpers import decoders, layouts


@pytest.fixture(scope="module")
def layout():
  return layouts.layout(data=2, fsdp=2, tensor=2)


def test_parameters_are_really_split(layout):
  flat = ModelDef(decoders.config(vocab_size=32), layout).init(0)
  kernel = flat["layers"]["mlp"]["up_proj"]["kernel"]  # [L, D, F]
  assert kernel.sharding.spec == PartitionSpec(None, ("fsdp",), ("tensor",))
  assert kernel.addressable_shards[0].data.shape == (3, 16 // 2, 24 // 2)
  assert flat["embed"]["embedding"].addressable_shards[0].data.shape == (32 // 2, 16 // 2)


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


def test_axes_that_do_not_divide_stay_whole(layout):
  x = jax.jit(lambda x: layout.constrain(x, "batch", "tokens", "heads", None))(
    jnp.ones((3, 1, 2, 5))
  )
  assert {shard.data.shape for shard in x.addressable_shards} == {(3, 1, 1, 5)}


def test_number_of_shards_and_specs(layout):
  counts = {axis: layout.num_shards(axis) for axis in LOGICAL_AXES}
  assert counts == {
    "batch": 4, "tokens": 1, "embed": 1, "layers": 1, "embed_param": 2, "vocab": 2, "heads": 2,
    "mlp": 2, "experts": 1,
  }  # fmt: skip
  assert layout.spec("batch", None, "embed") == PartitionSpec(
    ("data", "fsdp", "expert"), None, None
  )
  assert layout.platform == "cpu"


def test_parameters_that_do_not_divide_are_told_by_size(layout):
  kernels = {
    "a/up": Parameter((3, 15, 25), ("layers", "embed_param", "mlp")),
    "a/down": Parameter((3, 25, 15), ("layers", "mlp", "embed_param")),
    "embedding": Parameter((31, 16), ("vocab", "embed_param")),
    "combinator": Parameter((3, 7), ("layers", None)),
  }
  assert [line.split("; change ")[0] for line in failures(kernels, layout)] == [
    "D=15 of a/up and 1 more is not divisible by 2, that is config.mesh.fsdp=2",
    "F=25 of a/up and 1 more is not divisible by 2, that is config.mesh.tensor=2",
    "V=31 of embedding is not divisible by 2, that is config.mesh.tensor=2",
  ]
  with pytest.raises(ValueError, match=r"V=31 of embed/embedding .* vocab=\(\) of config.sharding"):
    ModelDef(decoders.config(vocab_size=31), layout)


def test_rules_that_leave_devices_idle_are_refused():
  with pytest.raises(ValueError, match=r"config.mesh.tensor=2, but config.sharding.name='fsdp'"):
    layouts.layout("fsdp", data=4, tensor=2)
  assert layouts.layout("dp").num_shards("batch") == 8


@pytest.mark.parametrize(
  "rule, message",
  [
    ({"tokens": ("sequense",)}, "'sequense' is not a mesh axis; did you mean 'sequence'?"),
    ({"tokens": ("x",)}, "allowed: data, fsdp, expert, tensor, sequence"),
    ({"tokens": "sequence"}, r"tokens='sequence' must be a tuple of mesh axes"),
    ({"tokens": ("sequence", "sequence")}, "has a mesh axis twice"),
    ({"tokens": ("tensor",)}, "tokens and heads are axes of one array, and 'tensor' cannot"),
    ({"embed": ("tensor",)}, "vocab and embed are axes of one array"),
    ({"batch": ("data",), "mlp": ("fsdp",)}, "embed_param and mlp are axes of one array"),
    ({"batch": ("data",), "heads": ("fsdp",)}, "embed_param and heads are axes of one array"),
  ],
)
def test_rules_that_cannot_be_are_refused(rule, message):
  table = {axis: getattr(layouts.sharding().rules, axis) for axis in LOGICAL_AXES}
  with pytest.raises(ValueError, match=message) as raised:
    Rules(**table | rule)
  assert str(raised.value).startswith("config.sharding: ")


def test_a_table_of_lists_is_one_of_tuples():
  table = {axis: list(getattr(layouts.sharding().rules, axis)) for axis in LOGICAL_AXES}
  assert make_layout(MeshConfig(), ShardingConfig("mine", Rules(**table))).rules == (
    layouts.sharding().rules
  )


@pytest.mark.parametrize("sizes", [{"data": 8}, {"tensor": 4}, {"fsdp": 2, "sequence": 4}])
def test_batches_lie_where_the_rules_say(sizes):
  layout = layouts.layout("long_context", **sizes)
  assert list(layout.rows(16)) == list(range(16))  # of one process
  batch = {"inputs": np.arange(16 * 8, dtype=np.int32).reshape(16, 8)}
  placed = layout.put(batch, 16)["inputs"]
  want = jax.device_put(batch["inputs"], layout.sharding("batch", "tokens"))
  np.testing.assert_array_equal(placed, batch["inputs"])
  assert placed.sharding == want.sharding
  for shard, wanted in zip(placed.addressable_shards, want.addressable_shards, strict=True):
    np.testing.assert_array_equal(shard.data, wanted.data)
  table = layout.copy(np.arange(5))
  assert table.sharding.is_fully_replicated and list(table) == list(range(5))
