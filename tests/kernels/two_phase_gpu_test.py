"""Both phases in Mosaic GPU: lowered for cuda, and run in the interpreter of the newest JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from configs import base
from launch.bench import compile
from launch.bench.kernels import arg_specs, networks, walks
from resjax.base.sharding import Layout
from resjax.combinators import BlockAttnRes
from resjax.kernels.depth_attention import Sources
from resjax.kernels.depth_attention.mosaic_gpu import (
  block_backward,
  block_forward,
  merge_backward,
  merge_forward,
  obstacles,
  two_phase_plan,
)
from resjax.kernels.depth_attention.operands import MergeOperands, Operands, Read
from resjax.kernels.mosaic_gpu import GpuTiles
from resjax.testing.compare import assert_close
from tests.helpers import layouts, two_phase_kernels
from tests.helpers.gpus import Gpu
from tests.helpers.two_phase_kernels import (
  FORWARD,
  GRADIENT,
  block_example,
  chain,
  check_block,
  check_merge,
  in_float64,
  merge_example,
)

EPS = 1e-6
BF16, FP16, FP32 = jnp.bfloat16, jnp.float16, jnp.float32
TOKENS = 1001
H100 = 228 * 1024  # bytes of shared memory of a multiprocessor


def shaped(*shape, dtype=FP32):
  return jax.ShapeDtypeStruct(shape, dtype)


def kernels(function, *arguments):
  """Returns how many kernels a program has for cuda, and how many arrays these update in place."""
  program = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
  text = program.as_text()
  return text.count("custom_call @mosaic_gpu"), text.count("output_operand_alias<")


def shapes(tree):
  return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def block_operands(count, banked, reads, width, dtype):
  source = shaped(TOKENS, width, dtype=dtype)
  bank = shaped(banked, TOKENS, width, dtype=dtype) if banked else None
  counts, queries = shaped(2, dtype=jnp.int32), shaped(reads, width)
  return Operands(bank, (source,) * (count - banked), counts, queries, None, None)


@pytest.mark.parametrize(
  ("count", "banked", "reads", "width", "dtype", "threaded"),
  [
    (1, 0, 1, 128, FP16, True),
    (3, 2, 3, 384, FP32, False),
    (4, 4, 8, 2048, BF16, True),
    pytest.param(9, 9, 8, 2048, BF16, True, marks=pytest.mark.release),
    pytest.param(9, 8, 8, 7168, BF16, True, marks=pytest.mark.release),
    pytest.param(32, 0, 2, 1536, BF16, False, marks=pytest.mark.release),
  ],
)
def test_phase_1_lowers_for_cuda(count, banked, reads, width, dtype, threaded):
  read = Read(1, EPS, False, threaded, implementation="mosaic_gpu")
  operands = block_operands(count, banked, reads, width, dtype)
  forward = functools.partial(block_forward.forward, read)
  assert kernels(forward, operands) == (1, 0)
  out, stats = jax.eval_shape(forward, operands)
  assert out.shape == (reads, TOKENS, width) and stats.logits.shape == (reads, count, TOKENS)
  sources = operands.bank, operands.recent
  arguments = operands, stats, out, stats.lse, sources if threaded else None
  backward = functools.partial(block_backward.backward, read)
  assert kernels(backward, *arguments) == (1, threaded * len(jax.tree.leaves(sources)))
  d = jax.eval_shape(backward, *arguments)
  assert shapes((d.bank, d.recent)) == shapes(sources)
  assert d.query.shape == (reads, width)


def merge_operands(width, dtype, adds, normed):
  row, gain = shaped(TOKENS, width, dtype=dtype), shaped(width)
  reads, lse = shaped(8, TOKENS, width, dtype=dtype), shaped(8, TOKENS)
  counts = shaped(2, dtype=jnp.int32)
  return MergeOperands(
    reads, lse, row, counts, gain, row if adds else None, gain if normed else None
  )


@pytest.mark.parametrize(
  ("width", "dtype", "adds", "normed"),
  [
    (128, FP16, True, False),
    (384, FP32, False, False),
    (2048, BF16, True, True),
    pytest.param(7168, BF16, False, True, marks=pytest.mark.release),
    pytest.param(8192, FP32, True, True, marks=pytest.mark.release),
  ],
)
def test_a_merge_lowers_for_cuda(width, dtype, adds, normed):
  read = Read(1, EPS, adds, True, implementation="mosaic_gpu")
  operands = merge_operands(width, dtype, adds, normed)
  forward = functools.partial(merge_forward.forward, read)
  assert kernels(forward, operands) == (1, 0)
  out, running, stats = jax.eval_shape(forward, operands)
  assert (running is not None) == adds and stats.log_odds.shape == (TOKENS,)
  if dtype == BF16:
    assert stats.remainder.size == TOKENS * width // 2 and stats.remainder.dtype == jnp.int8
  else:
    assert stats.remainder is None
  d_reads = operands.out, operands.lse
  operands = operands._replace(out=None, lse=None, addend=None)
  arguments = operands, out, stats, out, out, d_reads
  backward = functools.partial(merge_backward.backward, read)
  assert kernels(backward, *arguments) == (1, 3)  # out and lse of phase 1, running sum
  d = jax.eval_shape(backward, *arguments)
  assert shapes((d.out, d.lse)) == shapes(d_reads) and d.query.shape == (width,)


@pytest.fixture
def gpus(monkeypatch):
  """All devices are GPUs to what asks for a kernel."""
  monkeypatch.setattr(Layout, "platform", "gpu")
  monkeypatch.setattr(Layout, "device", Gpu())
  return monkeypatch


def test_a_device_lowers_the_kernels_for_its_own_tokens(gpus):
  layout = layouts.layout("long_context", data=2, fsdp=2, sequence=2)
  arrays = shaped(2, 128), shaped(3, 4, 10, 128), shaped(2, 4, 10, 128), shaped(128)
  gradients = jax.grad(functools.partial(chain, layout, None, False), (0, 1, 2, 3), has_aux=True)
  text = jax.jit(gradients).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
  # Phase 1 and two merges, forward and reverse.
  assert text.count("custom_call @mosaic_gpu") == 6 and "tensor<3x5x1x128xf32>" in text
  assert "all_reduce" in text and "all_gather" not in text


def test_block_attn_res_takes_two_phases_on_gpus_where_a_kernel_can_run(gpus):
  def opens(num_layers, width=128, **options):
    combinator = BlockAttnRes(
      num_layers=num_layers, d_model=width, sites=("attention", "mlp"), layers_per_block=2,
      layout=Layout(), **options,
    )  # fmt: skip
    slots = combinator.num_blocks + 1
    sources = Sources((), shaped(slots, 2, 3, width, dtype=BF16), 1)
    return jax.eval_shape(combinator.open_block, sources)[1] is not None

  gpus.setattr(jax, "device_count", lambda: 1)
  assert opens(12) and opens(12, implementation="mosaic_gpu")
  assert opens(4) and not opens(2)  # of 1 and 2 sources, of 1
  assert not opens(12, num_heads=2) and not opens(12, two_phase="never")
  assert not opens(12, implementation="reference") and not opens(12, width=192)
  assert not opens(64) and opens(64, two_phase="always")  # 33 sources
  gpus.setattr(Layout, "device", Gpu("8.0"))
  assert not opens(12) and opens(12, two_phase="always")


@pytest.mark.slow
def test_a_training_step_in_two_phases_lowers_for_cuda(gpus):
  config = base.get_config()
  config.model.attention = "xla"
  gpus.setattr(base, "get_config", lambda: config)
  small = compile.small_program("block_attn_res", 12, 3, jax.devices())
  traced = small.train_step.trace(small.state, small.batch)
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  for kernel in ("block_forward", "merge_forward", "forward"):
    assert f"depth_attention_{kernel}" in text, kernel
  # Phase 1 forward twice and in reverse, merges of two sites three times each, the output's read.
  assert text.count("custom_call @mosaic_gpu") == 11


@pytest.mark.slow
def test_the_arm_of_the_bench_lowers_for_cuda(gpus):
  gpus.setattr(jax, "device_count", lambda: 1)
  shape = arg_specs.NetworkShape(6, 2, 3, 128)
  assert networks.arms(shape)["two_phase"].implementation == "mosaic_gpu"
  form, inputs = walks.forms(shape)["two_phase"], networks.inputs(shape)
  gradients = jax.grad(lambda *inputs: jnp.sum(form(*inputs).astype(FP32)), (0, 1, 2))
  text = jax.jit(gradients).trace(*inputs).lower(lowering_platforms=("cuda",)).as_text()
  assert "depth_attention_block_forward" in text and "depth_attention_merge_forward" in text


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("count", [1, 2, 5, 9, 16, 32])
@pytest.mark.parametrize(
  ("width", "dtype"), [(128, BF16), (2048, BF16), (4096, BF16), (7168, BF16), (8192, FP32)]
)
def test_tiles_fit_into_shared_memory(count, width, dtype, threaded):
  like = shaped(5, width, dtype=dtype)
  forward = two_phase_plan.choose_forward(like, count, 8, H100)
  backward = two_phase_plan.choose_backward(like, count, 8, threaded, H100)
  words = (), (), (width // 2, 8)  # of the reverse pass: four tokens ahead, and barriers
  merges = [
    two_phase_plan.choose_merge(like, streams, H100, numbers)
    for streams, numbers in zip((2, 3, 4), words, strict=True)
  ]
  assert all(merges)
  for tiles in filter(None, (forward, backward, *merges)):
    rows = tiles.rows + sum(tiles.further_rows)
    own = rows * width * jnp.dtype(dtype).itemsize + 4 * sum(tiles.numbers)
    assert own < tiles.shared_bytes(like) <= 228 * 1024 // tiles.programs_per_sm - 1024
  if forward is not None:
    assert forward.rows >= count
  if backward is not None:
    reads, *before = backward.further_rows
    assert reads >= 8 and len(before) == threaded
    assert all(rows >= backward.group for rows in before)


def test_sources_of_a_token_stay_in_shared_memory_where_they_fit():
  def kept(count, width):
    tiles = two_phase_plan.choose_backward(shaped(5, width, dtype=BF16), count, 8, True, H100)
    return tiles.rows >= count

  assert kept(8, 2048) and kept(8, 4096) and kept(16, 1024)
  assert not kept(8, 7168) and not kept(32, 2048)


@pytest.mark.parametrize(
  ("count", "reads", "width", "words"),
  [
    (33, 2, 128, ["33 sources", "32"]),
    (16, 2, 8192, ["16 sources", "2 reads", "8192", "shared memory"]),
    (2, 33, 128, ["33 reads", "shared memory"]),
    (32, 16, 256, None),
  ],
)
def test_what_the_kernels_cannot_do(gpus, count, reads, width, words):
  read = Read(1, EPS, False, True, implementation="mosaic_gpu")
  obstacle = obstacles.block(read, block_operands(count, 0, reads, width, BF16))
  assert (obstacle is None) == (words is None)
  assert all(word in obstacle for word in words or [])


@pytest.mark.parametrize(
  ("capability", "width", "words"),
  [("8.0", 128, ["8.0", "9.0"]), ("9.0", 8320, ["8320", "8192"]), ("10.0", 8192, None)],
)
def test_what_a_merge_cannot_do(gpus, capability, width, words):
  gpus.setattr(Layout, "device", Gpu(capability))
  read = Read(1, EPS, False, True, implementation="mosaic_gpu")
  obstacle = obstacles.merge(read, merge_operands(width, BF16, False, False))
  assert (obstacle is None) == (words is None)
  assert all(word in obstacle for word in words or [])


def test_rings_that_do_not_exist_are_refused():
  with pytest.raises(ValueError, match=r"^GpuTiles.further_rows=\(0,\); allowed are 1 to 32 each$"):
    GpuTiles(6, 2, 4, 1, further_rows=(0,))


interpreted = pytest.mark.skipif(
  not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of GPU kernels"
)


def interpret():
  """Races are errors, and shared memory starts as NaN."""
  return plgpu.InterpretGPUParams(detect_races=True, uninitialized_memory="nan")


@interpreted
@pytest.mark.parametrize(
  ("num_reads", "num_banked", "num_recent", "num_valid", "tokens", "width", "dtype", "threaded"),
  [
    (1, 0, 1, 0, (), 128, np.float32, False),
    (2, 0, 2, 0, (3,), 384, jnp.bfloat16, True),
    (3, 9, 0, 5, (3,), 128, jnp.bfloat16, True),
    (2, 5, 1, 0, (4,), 128, np.float32, False),  # the bank is empty
    pytest.param(5, 3, 2, 2, (3,), 512, jnp.float16, True, marks=pytest.mark.release),
    pytest.param(9, 1, 2, 1, (3,), 256, np.float32, False, marks=pytest.mark.release),
    pytest.param(8, 8, 0, 8, (2,), 2048, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(2, 12, 4, 7, (3,), 128, jnp.bfloat16, True, marks=pytest.mark.release),
    pytest.param(2, 0, 3, 0, (3,), 7168, np.float32, True, marks=pytest.mark.release),
  ],
)
def test_phase_1_is_the_reference(
  num_reads, num_banked, num_recent, num_valid, tokens, width, dtype, threaded
):
  case = num_reads, num_banked, num_recent, num_valid, tokens, width, dtype, threaded
  check_block("mosaic_gpu", interpret(), *case)


@interpreted
@pytest.mark.parametrize("threaded", [pytest.param(False, marks=pytest.mark.release), True])
def test_sources_that_do_not_stay_are_read_twice(monkeypatch, threaded):
  numbers = two_phase_plan.backward_numbers(3, 0)
  tiles = GpuTiles(3, 2, 4, 1, numbers, (4, 3)[: 1 + threaded])
  monkeypatch.setattr(two_phase_plan, "choose_backward", lambda *args: tiles)
  check_block("mosaic_gpu", interpret(), 3, 3, 2, 2, (4,), 128, np.float32, threaded)


@interpreted
@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_phase_1_at_equal_and_at_huge_logits(scale):
  operands, cotangents = block_example(2, 0, 3, (4,))
  operands = scale * operands[0], *operands[1:]
  run = two_phase_kernels.block
  want, wants = in_float64(
    functools.partial(run, "reference", False, False, 0), operands, cotangents
  )
  got, gradients = run("mosaic_gpu", interpret(), False, 0, operands, cotangents)
  assert_close((got.out, got.lse), (want.out, want.lse), FORWARD)
  assert_close(gradients, wants, GRADIENT)


@interpreted
@pytest.mark.parametrize(
  ("tokens", "width", "dtype", "adds", "normed", "last_valid"),
  [
    ((), 128, np.float32, True, True, True),
    ((5,), 384, jnp.bfloat16, True, True, True),
    ((4,), 128, jnp.bfloat16, False, False, True),
    ((5,), 128, np.float32, True, True, False),
    ((5,), 256, np.float16, False, True, True),
    pytest.param((9,), 128, np.float32, False, True, True, marks=pytest.mark.release),
    pytest.param((5,), 512, np.float32, False, False, False, marks=pytest.mark.release),
    pytest.param((4,), 2048, jnp.bfloat16, True, True, True, marks=pytest.mark.release),
    pytest.param((3,), 7168, np.float32, True, True, True, marks=pytest.mark.release),
  ],
)
def test_a_merge_is_the_reference(tokens, width, dtype, adds, normed, last_valid):
  check_merge("mosaic_gpu", interpret(), tokens, width, dtype, adds, normed, last_valid)


@interpreted
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["block", "merge"])
def test_vmap_is_one_call_after_another(phase):
  if phase == "block":
    operands, cotangents = block_example(2, 2, 1, (3,))
    run = functools.partial(two_phase_kernels.block, "mosaic_gpu", interpret(), True, 2)
  else:
    operands, cotangents = merge_example((3,), 128, np.float32, True, True)
    run = functools.partial(two_phase_kernels.merge, "mosaic_gpu", interpret(), True)
  twice = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), (operands, cotangents))
  got = jax.vmap(run)(*twice)
  for index in range(2):
    want = run(*jax.tree.map(lambda a, i=index: a[i], twice))
    assert_close(jax.tree.map(lambda a, i=index: a[i], got), want, FORWARD)
