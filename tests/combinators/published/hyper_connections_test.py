"""Streams against the layers of transformers: DeepSeek-V4 and V4.1, GLM-5.3, HY 4."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from resjax import combinators
from resjax.kernels.streams import written
from tests.helpers import published

R = 4
SINGLE_PASS = {
  "gate_eps": 1e-4, "sinkhorn_iterations": 3, "read_site": "previous", "head": "previous"
}  # fmt: skip


@published.both("deepseek_v4")
def test_mhc_with_learned_head_is_that_of_deepseek_v4(numbers):
  check(numbers(), "mhc", gate_eps=1e-4, sinkhorn_iterations=3, head="learned")


@published.both("deepseek_v41")
def test_mhc_that_reads_as_the_site_before_says_is_that_of_deepseek_v41(numbers):
  check(numbers(), "mhc", **SINGLE_PASS)


@published.both("glm5_next")
def test_mhc_with_the_mean_as_head_is_that_of_glm5_next(numbers):
  check(numbers(), "mhc", gate_eps=1e-6, head="mean")


@published.both("hy_v4")
def test_independent_hc_is_that_of_hy_v4(numbers):
  check(numbers(), "independent_hc", gate_eps=1e-3, magnitude=2.5)


def test_eps_and_the_order_of_logits_are_seen():
  arrays = published.kept("deepseek_v4")
  with pytest.raises(AssertionError):
    check(arrays, "mhc", gate_eps=0.0, sinkhorn_iterations=3, head="learned")
  with pytest.raises(AssertionError):
    options = {"gate_eps": 1e-4, "sinkhorn_iterations": 3, "head": "learned"}
    check(arrays, "mhc", order=np.arange, **options)


def test_whose_site_says_what_is_read_is_seen():
  with pytest.raises(AssertionError):
    check(
      published.kept("deepseek_v41"), "mhc", **SINGLE_PASS | {"read_site": "own", "head": "sum"}
    )


def rows_first(count):
  """Where the logits of M are among those of `comb`, its transpose: [..., R²]."""
  return np.r_[: 2 * R, 2 * R + np.arange(R * R).reshape(R, R).T.reshape(-1)][:count]


def check(arrays, name, order=rows_first, **options):
  with jax.enable_x64(True):
    made = build(arrays, name, order, options)
    state = made.init(jnp.asarray(arrays["x"]))
    for layer in range(made.num_layers):
      for index, site in enumerate(made.sites):
        views, tape = made.read(state, layer, site)
        out = jnp.tanh(views["x"] @ arrays["branch"][layer, index].T)
        state = made.write(state, layer, site, out, tape=tape)
      want = np.moveaxis(arrays["streams"][layer], 2, 0)  # the streams lead here
      np.testing.assert_allclose(written(state), want, rtol=0, atol=1e-9)
    np.testing.assert_allclose(made.final(state), arrays["y"], rtol=0, atol=1e-9)


def build(arrays, name, order, options):
  """The combinator with the weights of the layers."""
  num_layers, num_sites, count, width = arrays["fn"].shape
  sizes = {"num_layers": num_layers, "d_model": width // R}
  made = nnx.eval_shape(
    lambda: combinators.build(name, **sizes, rngs=nnx.Rngs(0), eps=1e-5, **options)
  )
  fn = arrays["fn"].reshape(num_layers, num_sites, count, R, -1)[:, :, order(count)]
  params = {
    "projection": np.moveaxis(fn, 2, -1),
    "bias": arrays["base"][..., order(count)],
    "scale": arrays["scale"],
  }
  if made.head == "learned":
    params["head_projection"] = np.moveaxis(arrays["hc_fn"].reshape(R, R, -1), 0, -1)
    params |= {"head_bias": arrays["hc_base"], "head_scale": arrays["hc_scale"]}
  state = nnx.state(made)
  shapes = jax.tree.map(lambda leaf: leaf.shape, nnx.to_pure_dict(state))
  assert shapes == jax.tree.map(np.shape, params)
  nnx.replace_by_pure_dict(state, params)
  nnx.update(made, state)
  return made
