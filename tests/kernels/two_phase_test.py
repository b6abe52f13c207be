"""Two-phase depth attention of whole depth blocks against direct reads, and against numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import (
  Sources,
  depth_attention_block,
  depth_attention_merge,
  two_phase_moves_less,
)
from resjax.testing.compare import assert_close
from tests.helpers.two_phase import (
  EPS,
  cotangents,
  direct,
  example,
  numpy_block,
  two_phase,
  wide,
)


def outputs_and_gradients(block, inputs, **options):
  @jax.jit
  def run(inputs, d):
    outs, vjp = jax.vjp(lambda *a: block(*a, **options), *inputs)
    return outs[0], vjp(d)

  return run(inputs, cotangents(len(inputs[0]), inputs[2].dtype))


@pytest.mark.parametrize(
  ("count", "num_banked", "num_reads", "norm"),
  [(1, 0, 1, False), (1, 0, 2, True), (2, 2, 2, False), (5, 3, 8, True), (9, 9, 2, True)],
)
def test_two_phases_are_direct_reads_in_float64(count, num_banked, num_reads, norm):
  inputs = example(count, num_reads)
  with jax.enable_x64(True):
    want = outputs_and_gradients(direct, inputs, norm=norm)
    got = outputs_and_gradients(two_phase, inputs, norm=norm, num_banked=num_banked)
  assert_close(got[0], numpy_block(*inputs, norm=norm), 1e-13)
  assert_close(got, want, 1e-13)


@pytest.mark.parametrize("norm", [False, True])
def test_two_phases_in_float32(norm):
  inputs = [np.float32(a) for a in example(5, 2)]
  out, gradients = outputs_and_gradients(two_phase, inputs, norm=norm, num_banked=3)
  assert_close(out, numpy_block(*wide(inputs), norm=norm), 2e-6)
  with jax.enable_x64(True):
    _, want = outputs_and_gradients(direct, wide(inputs), norm=norm)
  assert_close(gradients, want, 1e-5)


def test_zero_queries_give_the_mean():
  _, gains, sources, _, _ = map(np.float32, example(5, 2))

  @jax.jit
  def run(queries, gains, sources):
    read = depth_attention_block(list(sources), queries, key_scales=gains)
    h, *_ = depth_attention_merge(read, 1, sources[0], queries[1])
    return read, h

  got, h = run(np.zeros_like(gains), gains, sources)
  assert_close(got.out, np.stack([sources.mean(axis=0)] * 2), 1e-6)
  np.testing.assert_allclose(got.lse, np.log(5), rtol=1e-6)
  assert_close(h, (sources.sum(axis=0) + sources[0]) / 6, 1e-6)


def test_sources_of_one_direction_have_equal_logits():
  queries, gains, sources, _, _ = map(np.float32, example(1, 2))
  scales = np.float32([1.0, 2.0, 4.0])  # powers of two: the same bits after a norm

  @jax.jit
  def run(queries, gains, same):
    first = depth_attention_block(same[:2], queries, key_scales=gains, eps=1e-30)
    h, *_ = depth_attention_merge(first, 1, same[2], queries[1], key_scale=gains[1], eps=1e-30)
    return h

  h = run(queries, gains, scales[:, None, None, None] * sources)
  assert_close(h, 7 / 3 * sources[0], 1e-6)


def test_sources_are_threaded_through_depth_blocks():
  queries, _, sources, addends, _ = example(2, 4)

  def loss(threads, queries, sources, addends):
    total, held = 0.0, Sources(tuple(sources))
    for first in (0, 2):
      queries_here = queries[first : first + 2]
      got = depth_attention_block(held, queries_here, eps=EPS, return_sources=threads)
      phase1, held = got if threads else (got, held)
      running = jnp.zeros_like(addends[0])
      for s, query in enumerate(queries_here):
        y, running, merged = depth_attention_merge(
          phase1, s, running, query, addend=addends[first + s], eps=EPS
        )
        phase1 = merged if threads else phase1
        total += jnp.sum(jnp.sin(y))
      held = held.append(running)
    return total

  with jax.enable_x64(True):
    gradients = jax.jit(jax.grad(loss, (1, 2, 3)), static_argnums=0)
    got, want = (gradients(threads, queries, sources, addends) for threads in (True, False))
  assert_close(got, want, 1e-13)


def test_second_derivatives_of_the_reference():
  queries, gains, sources, addends, out_gains = (a[:1, ...] for a in example(3, 1))

  def loss(block, x):
    outs, _ = block(queries, gains, [x, *example(3, 1)[2][1:]], addends, out_gains)
    return jnp.sum(jnp.sin(outs))

  with jax.enable_x64(True):
    x, along = jnp.asarray(sources[0]), jnp.asarray(addends[0])
    got, want = (
      jax.jit(lambda x, d, b=b: jax.jvp(jax.grad(lambda x: loss(b, x)), (x,), (d,))[1])(x, along)
      for b in (two_phase, direct)
    )
  assert_close(got, want, 1e-12)


@pytest.mark.parametrize("low_bits", [0, 0.25])
@pytest.mark.parametrize("num_sublayers", [1, 2, 8, 12])
@pytest.mark.parametrize("num_sources", range(1, 10))
def test_the_rule_counts_arrays(num_sources, num_sublayers, low_bits):
  phases = num_sources + num_sublayers + 3 * num_sources + num_sublayers
  direct_arrays = 0
  for sublayer in range(num_sublayers):
    reads = num_sources + (2 if sublayer else 0)  # running sum and addend
    direct_arrays += reads + (2 if sublayer else 1)
    direct_arrays += 3 * (num_sources + bool(sublayer)) + 1  # in reverse
    phases += 5 + 6 + 2 * low_bits if sublayer else 0
  assert two_phase_moves_less(num_sources, num_sublayers) == (phases < direct_arrays)
