"""The merge of two-phase depth attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import depth_attention_merge
from resjax.testing.compare import assert_close, relative_errors
from tests.helpers.two_phase import EPS, D, one_read, wide


def merge(out, lse, running, query, addend, out_gain):
  y, u, _ = depth_attention_merge(
    one_read(out, lse), 0, running, query, addend=addend, out_norm_scale=out_gain, eps=EPS
  )
  return y, u


def plain_merge(out, lse, running, query, addend, out_gain):
  """The same from its equations, to be differentiated."""
  u = running + addend
  s = u @ query / jnp.sqrt(jnp.mean(u**2, axis=-1) + EPS)
  share = jax.nn.softmax(jnp.stack([lse, s]), axis=0)[..., None]
  h = share[0] * out + share[1] * u
  if out_gain is not None:
    h = h / jnp.sqrt(jnp.mean(h**2, axis=-1, keepdims=True) + EPS) * out_gain
  return h, u


def merge_example(dtype, norm, lse, width=128):
  """Inputs of a merge and cotangents; tokens of one lse, and sums of one share of it."""
  rng = np.random.default_rng(5)
  out, running, addend, *d = rng.normal(size=(5, 32, width)).astype(dtype)
  query = (rng.normal(size=width) / width**0.5).astype(np.float32)
  gain = rng.normal(size=width).astype(np.float32) if norm else None
  lse = np.full(32, lse, np.float32)
  return (out, lse, running, query, addend, gain), tuple(d)


@functools.partial(jax.jit, static_argnums=0)
def outputs_and_gradients(fn, inputs, d):
  outputs, vjp = jax.vjp(fn, *inputs)
  return outputs, vjp(d)


def merge_errors(inputs, d):
  """Relative errors of outputs and of gradients against float64, by the name of an argument."""
  got, gradients = outputs_and_gradients(merge, inputs, d)
  with jax.enable_x64(True):
    want, wants = outputs_and_gradients(plain_merge, *wide((inputs, d)))
  names = "out", "lse", "running", "query", "addend", "gain"
  gradients, wants = (dict(zip(names, values, strict=True)) for values in (gradients, wants))
  return relative_errors(got, want), relative_errors(gradients, wants)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("lse", [2.0, 0.0, -3.0])
def test_a_merge_in_bfloat16(lse, norm):
  outputs, gradients = merge_errors(*merge_example(jnp.bfloat16, norm, lse))
  assert max(outputs.values()) <= 4e-3, outputs
  assert max(gradients.values()) <= 4e-3, gradients


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.95, 0.993])
def test_what_rounding_the_output_takes_from_the_gradient_of_the_logit(share, norm):
  """Of twelve bits, and in a difference that is 1 − β of what it is composed of."""
  (*others, addend, gain), d = merge_example(jnp.bfloat16, norm, np.log(1 / share - 1), 1024)
  _, gradients = merge_errors((*others, np.zeros_like(addend), gain), d)
  assert max(gradients["['lse']"], gradients["['query']"]) <= 2**-12 / (1 - share), gradients


# Not in a norm of a sum that is much the longer one: dh is then at right angles to u, nearly.
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
  ("of_sum", "of_read"), [(10, 1), (1, 10), (1, 1e4), (1e10, 1e10), (1e-10, 1e-10)]
)
def test_a_merge_of_short_and_long_rows(of_sum, of_read, dtype, norm):
  (out, lse, running, query, addend, gain), d = merge_example(dtype, norm, 0.0)

  def times(x, scale):
    return (x.astype(np.float32) * scale).astype(dtype)

  rows = times(out, of_read), times(running, of_sum), times(addend, of_sum)
  inputs = rows[0], lse, rows[1], query, rows[2], gain
  outputs, gradients = merge_errors(inputs, d)
  exact = dtype == jnp.float32
  assert max(outputs.values()) <= (2e-6 if exact else 4e-3), outputs
  assert max(gradients.values()) <= (1e-5 if exact else 4e-3), gradients


def test_second_derivatives_of_a_merge_in_bfloat16():
  (out, lse, running, query, addend, gain), _ = merge_example(jnp.bfloat16, True, 0.0)
  along = np.random.default_rng(6).normal(size=query.shape).astype(np.float32)

  def loss(fn, query):
    y, _ = fn(out, lse, running, query, jnp.zeros_like(addend), gain)
    return jnp.sum(jnp.sin(y.astype(lse.dtype)))

  @functools.partial(jax.jit, static_argnums=0)
  def second(fn, query):
    return jax.grad(lambda query: jax.grad(functools.partial(loss, fn))(query) @ along)(query)

  got = second(merge, query)
  with jax.enable_x64(True):
    out, lse, running, query, addend, gain, along = map(
      jnp.asarray, wide((out, lse, running, query, addend, gain, along))
    )
    want = second(plain_merge, query)
  assert_close(got, want, 8e-3)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("lse", [-1e6, -30.0, -5.0, 0.0, 30.0, 1e6])
def test_a_merge_at_any_share_in_float32(lse, norm):
  outputs, gradients = merge_errors(*merge_example(jnp.float32, norm, lse))
  assert max(outputs.values()) <= 2e-6, outputs
  # The gradient itself is 1 − β of what it is composed of.
  scaled = {"['lse']": np.exp(-max(lse, -30.0)), "['query']": np.exp(-max(lse, -30.0))}
  for path, error in gradients.items():
    assert error <= 1e-5 + 1e-6 * scaled.get(path, 0.0), gradients


@pytest.mark.parametrize("norm", [False, True])
def test_a_running_sum_that_does_not_count_is_not_read(norm):
  (out, lse, running, query, _, gain), d = merge_example(jnp.float32, norm, 0.0)

  @jax.jit
  def run(counts, running):
    def read(out, lse, running, query):
      y, u, _ = depth_attention_merge(
        one_read(out, lse), 0, running, query, out_norm_scale=gain, eps=EPS, last_valid=counts
      )
      return y, u

    (y, _), vjp = jax.vjp(read, out, lse, running, query)
    return y, vjp(d)

  y, (d_out, d_lse, d_running, d_query) = run(False, np.full_like(running, np.nan))
  normed = (
    (lambda x: gain * x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + EPS))
    if norm
    else (lambda x: x)
  )
  want, (d_want,) = outputs_and_gradients(normed, (out,), d[0])
  assert_close((y, d_out), (want, d_want), 2e-6)
  np.testing.assert_array_equal(d_running, d[1])
  assert not np.any(d_lse) and not np.any(d_query)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_gain_of_zero_has_a_gradient(dtype):
  inputs, d = merge_example(dtype, True, 0.0)
  inputs[5][:64] = 0
  outputs, gradients = merge_errors(inputs, d)
  assert max(outputs.values()) <= 4e-3, outputs
  assert max(gradients["['gain']"], gradients["['out']"]) <= 4e-3, gradients


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_merge_keeps_no_result_of_phase_1(dtype, norm):
  inputs, _ = merge_example(dtype, norm, 0.0)
  (y, u), vjp = jax.jit(lambda *inputs: jax.vjp(merge, *inputs))(*inputs)
  kept = jax.tree.leaves(vjp)
  wide_ones = [np.float64(leaf) for leaf in kept if leaf.shape == y.shape]
  assert sorted(map(np.sum, wide_ones)) == sorted(map(np.sum, map(np.float64, (y, u))))
  per_token = [leaf for leaf in kept if leaf.shape == y.shape[:-1]]
  assert len(per_token) == 3 + norm
  others = [leaf.nbytes for leaf in kept if leaf.ndim > 1 and leaf.shape != y.shape]
  assert others == ([y.nbytes / 4] if dtype == jnp.bfloat16 else [])


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({"reads": one_read(np.ones((2, D)), np.ones(2))}, ["reads.out", "[1, 2, 16]", "[1, 3, 16]"]),
    ({"addend": np.ones((3, D), np.float16)}, ["addend", "float16", "float64"]),
    ({"reads": one_read(np.ones((3, D)), np.ones(2))}, ["reads.lse", "(1, 2)", "(1, 3)"]),
    ({"slot": 1}, ["slot=1", "1 reads", "0..0"]),
    ({"query": np.ones(D + 1)}, ["query", "(17,)"]),
    ({"key_scale": np.ones((1, D))}, ["key_scale", "(1, 16)"]),
    ({"out_norm_scale": np.ones(1)}, ["out_norm_scale", "(1,)"]),
  ],
)
def test_what_does_not_fit_a_merge_is_refused(changes, words):
  reads = one_read(np.ones((3, D)), np.ones(3))
  arguments = {"reads": reads, "slot": 0, "running": np.ones((3, D))}
  with pytest.raises(ValueError) as refused:
    depth_attention_merge(**(arguments | {"query": np.ones(D)} | changes))
  assert all(word in str(refused.value) for word in words), refused.value
