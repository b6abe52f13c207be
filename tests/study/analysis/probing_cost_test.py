"""The cost of probes beside a plain evaluation step, as the compiler states it."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from configs import base
from launch.bench.program import hlo
from launch.bench.program.matrix_flops import matrix_flops
from resjax.models.decoder import Decoder
from resjax.models.losses import cross_entropy
from resjax.study.analysis.probing import ProbeConfig, probe_batch
from resjax.train import experiment, program
from tests.helpers import decoders
from tests.helpers.memory import total_bytes

# The sizes of GPT-2 medium; B and T differ from all other sizes.
L, V, D, H, B, T = 24, 50257, 1024, 16, 3, 896


@functools.cache
def compiled(name, style, dtype):
  """Compiles a plain evaluation step, and one with probes."""
  sizes = {"vocab_size": V, "num_layers": L, "d_model": D, "mlp_dim": 4 * D, "max_positions": T}
  config = decoders.config(style, name, num_heads=H, num_kv_heads=H, dtype=dtype, **sizes)
  graphdef, state = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
  rows = jax.ShapeDtypeStruct((B, T), jnp.int32)
  table = jax.ShapeDtypeStruct((V,), jnp.int32)

  def plain(state, inputs, targets, segment_ids, positions):
    decoder = nnx.merge(graphdef, state)
    hidden = decoder(inputs, segment_ids, positions)
    weights = (segment_ids != 0).astype(jnp.float32)
    return cross_entropy(hidden, decoder.head, targets, weights, chunk_size=1024)

  def probed(state, inputs, segment_ids, positions, counts, deciles, key):
    batch = {"inputs": inputs, "segment_ids": segment_ids, "positions": positions}
    return probe_batch(nnx.merge(graphdef, state), batch, counts, deciles, key, ProbeConfig())

  key = jax.eval_shape(lambda: jax.random.key(0))
  steps = (plain, (rows,) * 4), (probed, (*(rows,) * 3, table, table, key))
  return [jax.jit(step).lower(state, *arguments).compile() for step, arguments in steps]


walk = pytest.mark.parametrize(
  "name, style, dtype",
  [
    ("standard", "gpt2", "float32"),
    pytest.param("block_attn_res", "llama", "bfloat16", marks=pytest.mark.release),
  ],
)


@walk
def test_probes_take_at_most_a_fifth_more_memory(name, style, dtype):
  plain, probed = (total_bytes(step) for step in compiled(name, style, dtype))
  assert probed <= 1.2 * plain


@pytest.mark.parametrize(
  "name, style, dtype",
  [
    ("standard", "llama", "bfloat16"),
    pytest.param("standard", "gpt2", "float32", marks=pytest.mark.release),
    pytest.param("block_attn_res", "llama", "bfloat16", marks=pytest.mark.release),
  ],
)
def test_the_same_beside_the_evaluation_step_of_a_sharded_run(name, style, dtype):
  programs = sharded(name, style, dtype)
  plain, probed = programs.lower_eval_step(), programs.lower_alignment_step()
  assert total_bytes(probed.compile()) <= 1.2 * total_bytes(plain.compile())


def sharded(name, style, dtype):
  """Returns the programs of a run on eight devices that split the parameters, with a row each."""
  config = base.get_config(style)
  config.model.update(num_layers=L, d_model=D, num_heads=H, num_kv_heads=H, mlp_dim=4 * D)
  config.model.update(dtype=dtype)
  config.model.residual.name = name
  config.data.seq_len = 1024
  config.mesh.update(data=1, fsdp=8)
  config.train.update(batch_size=8)
  run = experiment.build(config).with_vocab_size(V)
  return program.build(run)


@walk
def test_probes_cost_one_output_head_per_layer(name, style, dtype):
  plain, probed = (matrix_flops(hlo.parse(step.as_text())) for step in compiled(name, style, dtype))
  head = 2 * B * T * V * D
  assert (L - 1) * head < probed - plain <= 1.1 * L * head


@walk
def test_no_array_has_the_states_or_logits_of_all_layers(name, style, dtype):
  text = compiled(name, style, dtype)[1].as_text()
  shapes = {tuple(map(int, sizes.split(","))) for sizes in re.findall(r"\w+\[([\d,]+)\]", text)}
  assert any({B, T, D} <= set(shape) for shape in shapes)
  depths = {L, L + 1}
  assert not [s for s in shapes if depths & set(s) and {B, T} <= set(s)]
  assert not [s for s in shapes if depths & set(s) and B * T in s]
  assert not [s for s in shapes if V in s and len(s) == 3 and s[0] > B]
