"""What devices hold parts of is summed in float32 in a bfloat16 step."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from configs import tiny
from resjax.train import experiment, program
from tests.helpers import hlo, walks

MESHES = {
  "fsdp_tp": {"data": 2, "fsdp": 2, "tensor": 2},
  "long_context": {"data": 1, "fsdp": 2, "tensor": 2, "sequence": 2},
}
QUICK, SLOW = ("standard", "fsdp_tp"), ("block_attn_res", "long_context")
RELEASE = [("standard", "long_context"), ("block_attn_res", "fsdp_tp")]
RELEASE += [(name, "long_context") for name in ("mhc", "muddformer", "deep_delta", "highway")]


def lowered_step(name, rules):
  c = tiny.get_config()
  c.model.update(num_layers=4, d_model=64, mlp_dim=96, dtype="bfloat16", bias="all")
  c.model.update(positions="learned", norm="layernorm", tied_embeddings=False, remat="full")
  c.model.short_swa.window = 4
  c.model.residual.name, c.sharding.name = name, rules
  c.data.seq_len = 64
  c.mesh.update(**MESHES[rules])
  run = experiment.build(c).with_vocab_size(512)
  return program.build(run).lower_train_step()


@pytest.mark.parametrize(
  "name, rules", walks.words((QUICK, SLOW, *RELEASE), quick=QUICK, slow=SLOW)
)
def test_partial_sums_are_float32(name, rules, tmp_path):
  text = hlo.partitioned(lowered_step(name, rules), tmp_path)
  assert hlo.narrow_sums(text) == []
  sums = [one for one in hlo.instructions(text) if one.opcode == "all-reduce"]
  assert len([one for one in sums if "dot_general" in one.source]) > 5  # they are in the text
  gathers = [one.result for one in hlo.instructions(text) if one.opcode == "all-gather"]
  assert any(result.startswith("bf16") for result in gathers)  # parameters are gathered rounded


@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_narrow_sums_would_be_seen(out, tmp_path):
  mesh = jax.make_mesh((8,), ("x",), (jax.sharding.AxisType.Auto,))
  split = functools.partial(jax.NamedSharding, mesh)

  def train_step(x, w):
    return jax.lax.dot(x, w, preferred_element_type=out).astype("bfloat16")

  arguments = [
    jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=split(PartitionSpec(*spec)))
    for shape, spec in (((8, 16), (None, "x")), ((16, 8), ("x", None)))
  ]
  step = jax.jit(train_step, out_shardings=split(PartitionSpec()))
  (found,) = hlo.narrow_sums(hlo.partitioned(step.lower(*arguments), tmp_path))
  assert found.opcode == "all-reduce" and found.result.startswith(
    {"bfloat16": "bf16", "float32": "f32"}[out]
  )
