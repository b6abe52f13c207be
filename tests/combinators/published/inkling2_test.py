"""`block_attn_res` with normalised values and three queries is Inkling 2's, to 1e-9 in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax import combinators
from resjax.testing import toy
from tests.helpers import published

NORM_EPS, PER_BLOCK = 1e-4, 2  # as in the maker


def combinator(a, num_layers):
  """Layers with one query have it three times; the first read has no query."""
  made = combinators.build(
    "block_attn_res", num_layers=num_layers, d_model=a["x"].shape[-1], layers_per_block=PER_BLOCK,
    value_norm=True, key_norm="plain", scale="rsqrt", views="qkv", rngs=nnx.Rngs(0),
  )  # fmt: skip
  of_attention = [
    np.broadcast_to(a.get(f"layers.{i}.attention_input.query", 0), (3, made.d_model))
    for i in range(num_layers)
  ]
  of_mlp = [a[f"layers.{i}.mlp_input.query"] for i in range(num_layers)]
  made.view_query[...] = jnp.stack([queries[1:] for queries in of_attention])
  made.query[...] = jnp.stack([jnp.stack(of_attention)[:, 0], jnp.stack(of_mlp)], axis=1)
  made.final_query[...] = a["final_input.query"]
  return made


def normed(a, layer, site, views):
  """The views through their norms: three, or one for all."""
  one = "post_attention_layernorm" if site == "mlp" else "input_layernorm"

  def gain(query_name):
    names = f"layers.{layer}.{query_name}_input_layernorm.weight", f"layers.{layer}.{one}.weight"
    return next(a[name] for name in names if name in a and (site != "mlp" or name is names[1]))

  names = {"x": "q", "k": "k", "v": "v"}
  return {v: gain(names[v]) * toy.rms_norm(x, NORM_EPS) for v, x in views.items()}


@published.both("inkling2")
def test_inkling2(numbers):
  with jax.enable_x64(True):
    a = {name: jnp.asarray(array) for name, array in numbers().items()}
    num_layers = len(a["outputs"]) // 2
    made = combinator(a, num_layers)
    state = made.init(a["x"])
    for layer in range(num_layers):
      for index, site in enumerate(made.sites):
        views, tape = made.read(state, layer, site)
        seen = normed(a, layer, site, views)
        weight = a[f"layers.{layer}.{('self_attn', 'mlp')[index]}.weight"]
        inputs = seen.values() if len(weight) == 3 else [seen["x"]]
        out = jnp.tanh(sum(x @ w for x, w in zip(inputs, weight, strict=True)))
        np.testing.assert_allclose(out, a["outputs"][2 * layer + index], rtol=0, atol=1e-9)
        state = made.write(state, layer, site, out, normed=seen, tape=tape)
    final = a["norm.weight"] * toy.rms_norm(made.final(state), NORM_EPS)
    np.testing.assert_allclose(final, a["final"], rtol=0, atol=1e-9)
