"""`gemma3n_laurel` is the LAuReL of Gemma 3n as transformers has it, to 1e-9 in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from resjax import combinators
from resjax.testing import toy
from tests.helpers import published

EPS = 1e-4


@published.both("gemma3n")
def test_gemma3n(numbers):
  with jax.enable_x64(True):
    a = {name: jnp.asarray(array) for name, array in numbers().items()}
    num_layers, d_model = a["scale"].shape
    made = combinators.build(
      "gemma3n_laurel", num_layers=num_layers, d_model=d_model, rank=3, eps=EPS, rngs=nnx.Rngs(0)
    )
    made.down[...], made.up[...] = (jnp.swapaxes(a[name], 1, 2) for name in ("left", "right"))
    made.scale[...] = a["scale"]
    x = made.init(a["x"])
    for layer in range(num_layers):
      for index, site in enumerate(made.sites):
        before, after = a["norms"][layer, 2 * index : 2 * index + 2]
        views, tape = made.read(x, layer, site)
        normed = {"x": before * toy.rms_norm(views["x"], EPS)}
        out = after * toy.rms_norm(jnp.tanh(normed["x"] @ a["branch"][layer, index].T), EPS)
        x = made.write(x, layer, site, out, normed=normed, tape=tape)
      np.testing.assert_allclose(x, a["streams"][layer], rtol=0, atol=1e-9)
    np.testing.assert_array_equal(made.final(x), x)
