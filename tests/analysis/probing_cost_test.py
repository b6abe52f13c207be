"""What probes cost beside a plain evaluation step, by the compiler's figures; nothing is run."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from resjax.analysis import hlo
from resjax.analysis.matrix_flops import matrix_flops
from resjax.analysis.probing import ProbeConfig, probe_batch
from resjax.losses import cross_entropy
from resjax.models.decoder import Decoder
from tests.helpers import decoders

# The sizes of GPT-2 medium; B and T like no other axis.
L, V, D, H, B, T = 24, 50257, 1024, 16, 3, 896


@functools.cache
def compiled(name, style, dtype):
  """A plain evaluation step, and one with probes."""
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
    pytest.param("block_attn_res", "llama", "bfloat16", marks=pytest.mark.slow),
  ],
)


@walk
def test_probes_take_at_most_a_fifth_more_memory(name, style, dtype):
  plain, probed = (total_bytes(step) for step in compiled(name, style, dtype))
  assert probed <= 1.2 * plain


def total_bytes(step):
  stats = step.memory_analysis()
  return sum(getattr(stats, f"{kind}_size_in_bytes") for kind in ("argument", "output", "temp"))


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
  assert max(s[0] for s in shapes if V in s and len(s) == 3) <= B
