"""What the reverse pass keeps of reads and writes is in the dtype of the activations."""

import jax
import jax.numpy as jnp
from flax import nnx

from resjax import combinators
from resjax.testing import toy
from tests.helpers import walks

WIDTH, TOKENS = 48, 7  # no other axis is as long


def branch(row, site, views, context, pre_norm):
  return views, sum(views.values())


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
  wide = [a for a in leaves if a.shape[-2:] == x.shape[1:] and a.dtype != x.dtype]
  # A gate for every channel is a mixing statistic itself.
  per_channel = case.name in ("gate", "highway") and case.options.get("granularity") == "channel"
  per_channel |= case.options.get("output_gate") == "vector"
  assert len(wide) <= (made.num_sublayers if per_channel else 0)
