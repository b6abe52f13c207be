"""The TPU kernels of both phases in the interpreter: it looks for races, memory starts as NaN."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from resjax.base.sharding import Layout
from resjax.kernels.depth_attention import (
  BlockRead,
  Sources,
  depth_attention_block,
  depth_attention_merge,
)
from resjax.testing.compare import assert_close
from tests.helpers import layouts
from tests.helpers.two_phase_kernels import (
  FORWARD,
  GRADIENT,
  NARROW,
  block,
  block_example,
  chain,
  check_block,
  check_merge,
  in_float64,
  merge,
  merge_example,
  normal,
)

INTERPRET = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")


@pytest.fixture(autouse=True)
def no_races(capfd):
  """The interpreter prints the races that it finds."""
  yield
  assert "RACE" not in capfd.readouterr().out


@pytest.mark.parametrize(
  ("num_reads", "num_banked", "num_recent", "num_valid", "tokens", "width", "dtype", "threaded"),
  [
    (1, 0, 1, 0, (), 128, np.float32, False),
    (2, 0, 2, 0, (3, 11), 384, jnp.bfloat16, True),
    pytest.param(3, 9, 0, 5, (2, 7), 128, jnp.bfloat16, True, marks=pytest.mark.slow),
    pytest.param(8, 9, 0, 5, (2, 11), 128, jnp.bfloat16, True, marks=pytest.mark.release),
    # The bank is empty.
    pytest.param(2, 5, 1, 0, (19,), 128, np.float32, True, marks=pytest.mark.slow),
    pytest.param(9, 3, 6, 2, (37,), 256, np.float32, False, marks=pytest.mark.release),
    # Two parts of the grid, each with several tiles: reads and writes of the bank overlap.
    (2, 2, 1, 1, (768,), 128, jnp.bfloat16, True),
    pytest.param(1, 16, 0, 16, (5,), 128, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(1, 20, 0, 20, (5,), 128, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(1, 64, 0, 64, (5,), 128, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(1, 0, 2, 0, (5,), 1536, np.float32, False, marks=pytest.mark.slow),
    pytest.param(1, 0, 2, 0, (5,), 2048, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(1, 0, 1, 0, (5,), 7168, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(8, 8, 0, 8, (40,), 2048, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(2, 60, 4, 33, (19,), 128, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(4, 0, 3, 0, (19,), 7168, np.float32, False, marks=pytest.mark.release),
  ],
)
def test_phase_1_is_the_reference(
  num_reads, num_banked, num_recent, num_valid, tokens, width, dtype, threaded
):
  case = num_reads, num_banked, num_recent, num_valid, tokens, width, dtype, threaded
  check_block("mosaic_tpu", INTERPRET, *case)


@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_phase_1_at_equal_and_at_huge_logits(scale):
  operands, cotangents = block_example(2, 0, 3, (17,))
  operands = scale * operands[0], *operands[1:]
  reference = functools.partial(block, "reference", False, False, 0)
  want, wants = in_float64(reference, operands, cotangents)
  got, gradients = block("mosaic_tpu", INTERPRET, False, 0, operands, cotangents)
  assert_close((got.out, got.lse), (want.out, want.lse), FORWARD)
  assert_close(gradients, wants, GRADIENT)


@pytest.mark.parametrize(
  ("tokens", "width", "dtype", "adds", "normed", "last_valid"),
  [
    ((), 128, np.float32, True, True, True),
    ((2, 11), 384, jnp.bfloat16, True, True, True),
    pytest.param((2, 11), 128, jnp.bfloat16, False, False, True, marks=pytest.mark.slow),
    pytest.param((3, 50), 128, np.float32, False, True, True, marks=pytest.mark.release),
    ((19,), 128, np.float32, True, True, False),
    pytest.param((19,), 128, jnp.bfloat16, False, False, False, marks=pytest.mark.release),
    pytest.param((512,), 128, np.float32, True, True, True, marks=pytest.mark.release),
    # The last word is not full.
    pytest.param((130,), 640, jnp.bfloat16, True, True, True, marks=pytest.mark.release),
    pytest.param((5,), 1536, jnp.bfloat16, True, True, True, marks=pytest.mark.release),
    pytest.param((5,), 2048, jnp.bfloat16, True, True, True, marks=pytest.mark.release),
    pytest.param((5,), 7168, jnp.bfloat16, True, True, True, marks=pytest.mark.release),
    pytest.param((19,), 7168, np.float32, True, True, True, marks=pytest.mark.release),
  ],
)
def test_a_merge_is_the_reference(tokens, width, dtype, adds, normed, last_valid):
  check_merge("mosaic_tpu", INTERPRET, tokens, width, dtype, adds, normed, last_valid)


@pytest.mark.parametrize(
  "dtype", [np.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.release)]
)
def test_tokens_over_eight_devices_are_those_of_one(dtype):
  layout = layouts.layout("long_context", data=2, fsdp=2, sequence=2)
  bank, addends = (normal(n, 4, 6, 128, dtype=dtype, seed=n) for n in (3, 2))
  operands = normal(2, 128), bank, addends, normal(128, seed=3)

  def gradients(*how):
    return jax.jit(jax.grad(functools.partial(chain, *how), (0, 1, 2, 3), has_aux=True))

  # In bfloat16 a chain of reads is rounded elsewhere in the reference.
  how = ("reference", False) if dtype == np.float32 else ("mosaic_tpu", True)
  want = gradients(Layout(), *how)(*operands)
  tokens = layout.sharding(None, "batch", "tokens")
  placed = operands[0], *jax.device_put(operands[1:3], tokens), operands[3]
  # The plain interpreter is in the program, where its communication can be seen.
  compiled = gradients(layout, "mosaic_tpu", True).lower(*placed).compile()
  got = compiled(*placed)
  assert_close(got, want, GRADIENT if dtype == np.float32 else 1e-3)
  assert got[1].sharding.is_equivalent_to(layout.sharding("batch", "tokens"), 3)
  assert got[0][1].sharding.is_equivalent_to(tokens, 4)
  text = compiled.as_text()
  assert "all-gather" not in text and "all-to-all" not in text
  assert "collective-permute" not in text


@pytest.mark.parametrize(
  "dtype", [np.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.release)]
)
def test_scan_over_sublayers_with_recomputation(dtype):
  bank, addends = (normal(3, 9, 128, dtype=dtype, seed=seed) for seed in (1, 2))
  operands = normal(3, 128), bank, addends

  @functools.partial(jax.jit, static_argnums=(0, 1))
  def gradients(implementation, interpret, queries, bank, addends):
    options = {"implementation": implementation, "interpret": interpret}

    @jax.checkpoint
    def step(carry, xs):
      running, read = carry
      s, query, addend = xs
      y, running, read = depth_attention_merge(
        read, s, running, query, addend=addend, last_valid=s > 0, **options
      )
      return (running, read), jnp.sum(jnp.sin(y))

    def loss(queries, bank, addends):
      read = depth_attention_block(Sources((), bank, 2), queries, **options)
      xs = jnp.arange(3), queries, addends
      (running, _), sums = jax.lax.scan(step, (jnp.zeros_like(addends[0]), read), xs)
      return jnp.sum(sums) + jnp.sum(running**2)

    return jax.value_and_grad(loss, (0, 1, 2))(queries, bank, addends)

  want = gradients("reference", False, *operands)
  got = gradients("mosaic_tpu", True, *operands)
  assert_close(got, want, GRADIENT if dtype == np.float32 else NARROW)


@pytest.mark.parametrize(
  ("shape", "dtype", "words"),
  [
    ((128, 16, 16384), np.float32, ["on the chip"]),
    ((2, 16, 128), np.float16, ["float16", "bfloat16"]),
  ],
)
def test_what_a_chip_cannot_do_is_refused(shape, dtype, words):
  source = jax.ShapeDtypeStruct(shape[1:], dtype)
  queries = jax.ShapeDtypeStruct((8, shape[2]), np.float32)
  run = functools.partial(depth_attention_block, implementation="mosaic_tpu", interpret=INTERPRET)
  with pytest.raises(ValueError) as refused:
    jax.eval_shape(run, [source] * shape[0], queries)
  assert all(word in str(refused.value) for word in [*words, "mosaic_tpu"]), refused.value


def test_a_merge_that_is_too_wide_is_refused():
  array = jax.ShapeDtypeStruct((16, 65536), np.float32)
  run = functools.partial(depth_attention_merge, implementation="mosaic_tpu", interpret=INTERPRET)
  with pytest.raises(ValueError, match="of width 65536 need"):
    query = jax.ShapeDtypeStruct((65536,), np.float32)
    out, lse = (jax.ShapeDtypeStruct((1, *n), np.float32) for n in (array.shape, (16,)))
    reads = BlockRead(out, lse, None)
    jax.eval_shape(run, reads, 0, array, query)


@pytest.mark.parametrize("passes", [block_example, merge_example], ids=["phase 1", "merge"])
@pytest.mark.slow
def test_vmap_is_one_call_after_another(passes):
  if passes is block_example:
    operands, cotangents = block_example(2, 2, 1, (5,))
    run = functools.partial(block, "mosaic_tpu", INTERPRET, True, 2)
  else:
    operands, cotangents = merge_example((5,), 128, np.float32, True, True)
    run = functools.partial(merge, "mosaic_tpu", INTERPRET, True)
  twice = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), (operands, cotangents))
  got = jax.vmap(run)(*twice)
  for index in range(2):
    want = run(*jax.tree.map(lambda a, i=index: a[i], twice))
    assert_close(jax.tree.map(lambda a, i=index: a[i], got), want, FORWARD)
