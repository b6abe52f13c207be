"""What the reverse pass keeps of reads and writes: the dtype of the activations, streams once."""

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators
from resjax.testing import toy
from tests.helpers import walks

WIDTH, TOKENS = 48, 7  # no other axis is as long


def branch(row, site, views, context, pre_norm):
  return views, sum(views.values())


STREAMS = (
  "deep_delta", "gated_residual", "hyper_connections", "independent_hc", "mhc", "mhc_lite",
  "multi_gate", "wide_residual",
)  # fmt: skip
QUICK = "block_attn_res", "deep_delta", "gate", "gated_residual", "highway", "mhc", "muddformer"


@walks.first_cases(quick=QUICK)
def test_no_float32_copy_of_a_bfloat16_array_is_kept(case):
  sizes = {"num_layers": toy.L, "d_model": WIDTH, "sites": toy.SITES, "rngs": nnx.Rngs(0)}
  made = combinators.build(case.name, **sizes, scaled_init=True, **case.options)
  graphdef, state = nnx.split(made)

  def kept(state, x):
    return jax.vjp(lambda s, x: toy.by_hand(nnx.merge(graphdef, s), {}, x, branch), state, x)[1]

  x = jax.ShapeDtypeStruct((2, TOKENS, WIDTH), jnp.bfloat16)
  leaves = jax.tree.leaves(jax.eval_shape(kept, state, x))
  if case.name in STREAMS:  # no copies of an output for all of them
    assert sum(a.ndim == 4 and a.shape[1:] == x.shape for a in leaves) <= made.num_sublayers + 1
  wide = [a for a in leaves if a.shape[-2:] == x.shape[1:] and a.dtype != x.dtype]
  # A gate for every channel is a mixing statistic itself.
  per_channel = case.name in ("gate", "highway") and case.options.get("granularity") == "channel"
  per_channel |= case.options.get("output_gate") == "vector"
  assert len(wide) <= (made.num_sublayers if per_channel else 0)
