"""Depth attention in Mosaic GPU: lowered for cuda, and run in the interpreter of the newest JAX."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from resjax.base.sharding import Layout
from resjax.kernels.depth_attention import Sources, depth_attention
from resjax.kernels.depth_attention.mosaic_gpu import (
  direct_backward,
  direct_forward,
  direct_plan,
  obstacles,
)
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.depth_attention.operation import DIRECT
from resjax.kernels.mosaic_gpu import tiles as gpu_tiles
from resjax.testing.compare import assert_close
from tests.helpers import gpus, layouts, reference

EPS = 1e-6
BF16, FP32 = jnp.bfloat16, jnp.float32
H100 = 228 * 1024  # bytes of shared memory of a multiprocessor
FORWARD = {BF16: 4e-3, FP32: 2e-6}
GRADIENTS = {BF16: 4e-3, FP32: 1e-5}


def operands(count, banked, tokens, width, dtype, adds=False, norms=False):
  """Shapes of a read of `count` slots, `banked` of them in a bank."""
  row, gain = jax.ShapeDtypeStruct((tokens, width), dtype), jax.ShapeDtypeStruct((width,), FP32)
  bank = jax.ShapeDtypeStruct((banked, tokens, width), dtype) if banked else None
  counts = jax.ShapeDtypeStruct((2,), jnp.int32)
  recent = (row,) * (count - banked)
  return Operands(bank, recent, counts, gain, row if adds else None, gain if norms else None)


@pytest.mark.parametrize(
  ("width", "dtype"),
  [
    (128, BF16),
    pytest.param(384, BF16, marks=pytest.mark.release),
    pytest.param(2048, BF16, marks=pytest.mark.release),
    pytest.param(7168, BF16, marks=pytest.mark.release),
    (384, jnp.float16),
    (2048, FP32),
  ],
)
@pytest.mark.slow
def test_every_variant_lowers_for_cuda(width, dtype):
  for count, banked, adds, norms, threaded in ((3, 0, 0, 0, 0), (4, 2, 1, 1, 1), (2, 2, 0, 0, 1)):
    read = Read(1, EPS, bool(adds), bool(threaded), implementation="mosaic_gpu")
    inputs = operands(count, banked, 1001, width, dtype, adds, norms)
    forward = functools.partial(direct_forward.forward, read)
    assert gpus.lowered(forward, inputs).count("@mosaic_gpu") == 1
    out, running, stats = jax.eval_shape(forward, inputs)
    assert (running is not None) == adds and stats.logits.shape == (count, 1001)
    inputs = inputs._replace(addend=None)
    d_sources = (inputs.bank, inputs.recent) if threaded else None
    backward = functools.partial(direct_backward.backward, read)
    arguments = inputs, stats, out, d_sources
    assert gpus.lowered(backward, *arguments).count("@mosaic_gpu") == 1
    d = jax.eval_shape(backward, *arguments)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), (d.bank, d.recent)) == jax.tree.map(
      lambda x: (x.shape, x.dtype), (inputs.bank, inputs.recent)
    )


def test_a_device_lowers_the_kernels_for_its_own_tokens():
  layout = layouts.layout("long_context", data=2, fsdp=2, sequence=2)
  read = Read(1, EPS, False, False, implementation="mosaic_gpu", layout=layout)
  inputs = operands(3, 2, 0, 128, BF16)
  bank = jax.ShapeDtypeStruct((2, 4, 10, 128), BF16)
  row = jax.ShapeDtypeStruct((4, 10, 128), BF16)
  inputs = inputs._replace(bank=bank, recent=(row,))
  forward = functools.partial(DIRECT.forward, read)
  out, _, stats = jax.eval_shape(forward, inputs)
  assert out.shape == row.shape and stats.lse.shape == (4, 10)
  text = gpus.lowered(forward, inputs)
  assert text.count("@mosaic_gpu") == 1 and "tensor<2x5x1x128xbf16>" in text
  text = gpus.lowered(lambda *a: DIRECT.backward(read, *a, None), inputs, stats, out)
  assert text.count("@mosaic_gpu") == 1 and "tensor<2x5x1x128xbf16>" in text
  assert "all_reduce" in text and "all_gather" not in text


interpreted = pytest.mark.skipif(
  not hasattr(plgpu, "InterpretGPUParams"), reason="this JAX has no interpreter of GPU kernels"
)


def example(count, tokens, width, dtype, seed=0):
  """query, gain, sources, addend, gain of the output, cotangent; rounded to the dtype."""
  rng = np.random.default_rng(seed)
  shapes = (width,), (width,), (count, tokens, width), (tokens, width), (width,), (tokens, width)
  query, gain, sources, addend, out_gain, d_out = (rng.normal(size=s) for s in shapes)
  rounded = (jnp.asarray(x, dtype) for x in (sources, addend, d_out))
  gains = (jnp.asarray(x, FP32) for x in (query / np.sqrt(width), gain, out_gain))
  (query, gain, out_gain), (sources, addend, d_out) = gains, rounded
  return query, gain, sources, addend, out_gain, d_out


def attend(sources, query, gain, implementation="mosaic_gpu", **options):
  interpret = implementation == "mosaic_gpu" and plgpu.InterpretGPUParams(detect_races=True)
  return depth_attention(
    sources, query, key_scale=gain, implementation=implementation, interpret=interpret, **options
  )


def wide(*arrays):
  return [np.asarray(x, np.float64) for x in arrays]


def use_tiles(monkeypatch, rows, group):
  """A ring of few rows goes round within a token, and drops sources between walks over them."""
  tiles = gpu_tiles.GpuTiles(rows, group, summed_rows=4, programs_per_sm=2)
  monkeypatch.setattr(direct_plan, "choose_forward", lambda *args: tiles)

  def with_ring_of_cotangents(like, num_slots, threaded, room, sums):
    return dataclasses.replace(tiles, further_rows=(group + 1,) * threaded)

  monkeypatch.setattr(direct_plan, "choose_backward", with_ring_of_cotangents)


@interpreted
@pytest.mark.parametrize(
  ("count", "width", "rows", "dtype"),
  [(1, 128, 2, FP32), (3, 768, 3, FP32), (3, 384, 3, BF16), (3, 512, 7, BF16)],
)
def test_values_and_gradients_are_those_of_numpy(monkeypatch, count, width, rows, dtype):
  use_tiles(monkeypatch, rows, min(rows - 1, 2))
  query, gain, sources, *_, d_out = example(count, 5, width, dtype)
  h, vjp = jax.vjp(lambda q, g, v: attend(list(v), q, g), query, gain, sources)
  w, gamma, values, d = wide(query, gain, sources, d_out)
  assert_close(h, reference.depth_read(w, gamma, values, EPS), FORWARD[dtype])
  wants = reference.depth_read_gradients(w, gamma, values, EPS, d)
  assert_close(vjp(d_out), wants, GRADIENTS[dtype])


@interpreted
def test_zero_query_is_the_mean_and_sources_of_one_direction_have_equal_logits(monkeypatch):
  use_tiles(monkeypatch, 3, 2)
  query, gain, sources, *_ = example(5, 3, 128, FP32)
  assert_close(attend(list(sources), 0 * query, gain), sources.mean(axis=0), 2e-6)
  scales = np.array([1.0, 2.0, 4.0, 8.0, 16.0], np.float32)[:, None, None]
  h = attend(list(scales * sources[:1]), query, gain, eps=1e-30)
  assert_close(h, scales.mean() * sources[0], 2e-6)


@interpreted
def test_vmap_is_the_reads_one_by_one(monkeypatch):
  use_tiles(monkeypatch, 3, 2)
  query, gain, sources, *_, d_out = example(2, 4, 128, FP32)
  batched = sources.reshape(2, 2, 2, 128)  # [N, batch, T, D]

  def gradients(sources, d_out):
    h, vjp = jax.vjp(lambda v: attend(list(v), query, gain), sources)
    return h, vjp(d_out)[0]

  h, d_sources = jax.vmap(gradients, (1, 0), (0, 1))(batched, d_out.reshape(2, 2, 128))
  w, gamma, values, d = wide(query, gain, sources, d_out)
  assert_close(h.reshape(4, 128), reference.depth_read(w, gamma, values, EPS), 2e-6)
  want = reference.depth_read_gradients(w, gamma, values, EPS, d)[2]
  assert_close(d_sources.reshape(2, 4, 128), want, 1e-5)


@interpreted
def test_huge_and_tiny_sources(monkeypatch):
  use_tiles(monkeypatch, 3, 2)
  query, gain, sources, *_, d_out = example(4, 3, 128, FP32)
  exponents = np.array([[15, -15, 0, 5], [17, 17, 17, 17], [-15, -15, -15, -15]]).T  # by token
  scaled = sources * (10.0**exponents)[..., None].astype(np.float32)
  h, vjp = jax.vjp(lambda q, g, v: attend(list(v), q, g), query, gain, scaled)
  assert_close(h, reference.depth_read(*wide(query, gain, scaled), EPS), 2e-6)
  assert all(np.isfinite(leaf).all() for leaf in vjp(d_out))


@functools.partial(jax.jit, static_argnums=0)
def fused(implementation, num_valid, last_valid, inputs, cotangents):
  """Add, read and norm of sources in a bank and recent ones, threaded; with all cotangents."""

  def read(query, gain, bank, recent, addend, out_gain):
    sources = Sources(tuple(recent), bank, num_valid)
    h, sources = attend(
      sources, query, gain, implementation, addend=addend, out_norm_scale=out_gain,
      last_valid=last_valid, return_sources=True, eps=EPS,
    )  # fmt: skip
    return h, sources.bank, sources.recent

  out, vjp = jax.vjp(read, *inputs)
  return out, vjp(cotangents)


@interpreted
@pytest.mark.parametrize(
  ("rows", "num_valid", "last_valid", "dtype"), [(3, 2, 0, FP32), (6, 1, 1, BF16)]
)
def test_add_bank_and_norm_are_those_of_the_reference(
  monkeypatch, rows, num_valid, last_valid, dtype
):
  use_tiles(monkeypatch, rows, 2)
  query, gain, sources, addend, out_gain, d_out = example(5, 5, 128, dtype)
  d_sources = example(5, 5, 128, dtype, seed=1)[2]
  cotangents = d_out, d_sources[:3], tuple(d_sources[3:])
  bank, recent = sources[:3].at[num_valid:].set(jnp.nan), tuple(sources[3:])
  inputs = query, gain, bank, recent, addend, out_gain
  (h, *kept), d_inputs = fused("mosaic_gpu", num_valid, last_valid, inputs, cotangents)
  inputs = (query, gain, sources[:3], *inputs[3:])
  inputs = jax.tree.map(lambda x: x.astype(FP32), inputs)
  cotangents = jax.tree.map(lambda x: x.astype(FP32), cotangents)
  (want, _, want_recent), want_inputs = fused(
    "reference", num_valid, last_valid, inputs, cotangents
  )
  np.testing.assert_array_equal(*np.float32((kept[0], bank)))
  assert_close((h, kept[1]), (want, want_recent), FORWARD[dtype])
  assert_close(d_inputs, want_inputs, GRADIENTS[dtype])
  np.testing.assert_array_equal(*np.float32((d_inputs[2][num_valid:], d_sources[num_valid:3])))


@pytest.mark.parametrize("count", [1, 8, 16, 64, 128])
@pytest.mark.parametrize(
  ("width", "dtype"), [(128, BF16), (2048, BF16), (7168, BF16), (8192, FP32)]
)
def test_tiles_fit_into_shared_memory(count, width, dtype):
  like = jax.ShapeDtypeStruct((5, width), dtype)
  for kib in (228, 100):
    room = kib * 1024
    backward = [
      direct_plan.choose_backward(like, count, threads, room) for threads in (False, True)
    ]
    for tiles in filter(
      None, (direct_plan.choose_forward(like, count, count + 1, room), *backward)
    ):
      rows = tiles.rows + sum(tiles.further_rows)
      assert tiles.shared_bytes(like) >= rows * width * dtype(0).nbytes
      assert tiles.programs_per_sm * (tiles.shared_bytes(like) + 1024) <= room
    assert kib == 100 or None not in backward


def test_tiles_are_those_that_were_fastest_on_an_h200():
  wide, narrow = (jax.ShapeDtypeStruct((5, width), BF16) for width in (2048, 768))
  found = [
    direct_plan.choose_forward(wide, 8, 8, H100), direct_plan.choose_backward(wide, 8, False, H100),
    direct_plan.choose_forward(narrow, 6, 6, H100),
    direct_plan.choose_backward(narrow, 6, False, H100),
  ]  # fmt: skip
  assert [(t.rows, t.group, t.programs_per_sm) for t in found] == [
    (16, 4, 2), (9, 8, 3), (12, 6, 4), (14, 6, 4)
  ]  # fmt: skip


def test_a_ring_holds_whole_tokens_where_it_may():
  assert [gpu_tiles.whole(rows, 6, 2) for rows in (5, 6, 11, 12, 20)] == [5, 6, 6, 12, 18]
  assert gpu_tiles.whole(11, 6, 2, least=7) == 11 and gpu_tiles.whole(20, 6, 1) == 20


def test_sources_of_a_token_stay_in_shared_memory_where_they_fit():
  def kept(count, width):
    like = jax.ShapeDtypeStruct((5, width), BF16)
    return direct_plan.choose_backward(like, count, False, H100).rows > count

  assert kept(8, 2048) and kept(10, 4096) and kept(9, 7168)
  assert not kept(64, 2048) and not kept(16, 7168)
  # With cotangents of earlier reads a group of those needs room too.
  like = jax.ShapeDtypeStruct((5, 7168), BF16)
  tiles = direct_plan.choose_backward(like, 7, True, H100)
  assert tiles.rows > 7 and tiles.further_rows[0] >= tiles.group


@pytest.mark.parametrize(
  ("field", "value", "words"),
  [
    ("rows", 1, "2 to 32"),
    ("rows", 33, "2 to 32"),
    ("group", 0, "1 to 5"),
    ("group", 6, "1 to 5"),
    ("summed_rows", 6, "4 to 16 in steps of 4"),
    ("programs_per_sm", 5, "1 to 4"),
  ],
)
def test_tiles_that_do_not_exist_are_refused(field, value, words):
  sizes = {"rows": 6, "group": 2, "summed_rows": 4, "programs_per_sm": 1} | {field: value}
  with pytest.raises(ValueError, match=rf"^GpuTiles\.{field}={value}; allowed are {words}$"):
    gpu_tiles.GpuTiles(**sizes)


@pytest.mark.parametrize(
  ("capability", "width", "words"),
  [
    ("8.0", 128, ["'a GPU'", "8.0", "9.0"]),
    (None, 128, ["'a GPU'", "not known"]),
    ("9.0", 8320, ["8320", "8192"]),
    ("9.0", 8192, None),
    ("10.3", 128, None),
  ],
)
def test_what_the_kernels_cannot_do(monkeypatch, capability, width, words):
  monkeypatch.setattr(Layout, "device", gpus.Gpu(capability))
  read = Read(1, EPS, False, False, implementation="mosaic_gpu")
  obstacle = obstacles.direct(read, operands(2, 0, 3, width, BF16))
  assert (obstacle is None) == (words is None)
  assert all(word in obstacle for word in words or [])


def test_tiles_fit_the_shared_memory_that_the_gpu_tells(monkeypatch):
  like, inputs = jax.ShapeDtypeStruct((3, 2048), BF16), operands(8, 0, 3, 2048, BF16)
  read = Read(1, EPS, False, False, implementation="mosaic_gpu")
  sizes = []
  for program_bytes in (None, 227 * 1024, 99 * 1024):  # not told: as much as an H100 has
    monkeypatch.setattr(Layout, "device", gpus.Gpu("12.0", program_bytes))
    assert obstacles.direct(read, inputs) is None
    tiles = direct_forward.tiles_of(read, inputs), direct_backward.tiles_of(read, inputs)
    sizes.append([(t.programs_per_sm, t.shared_bytes(like)) for t in tiles])
  assert sizes[0] == sizes[1] and all(size <= 99 * 1024 for _, size in sizes[2])
  wide = operands(8, 0, 3, 8192, FP32)
  monkeypatch.setattr(Layout, "device", gpus.Gpu("12.0", 24 * 1024))
  obstacle = obstacles.direct(read, wide)
  assert all(word in obstacle for word in ("8 sources", "8192", "shared memory", "25600 bytes"))


def test_without_a_gpu_the_reference_runs_and_the_name_is_refused():
  sources, query = list(np.ones((2, 3, 128), np.float32)), np.ones(128, np.float32)
  want = depth_attention(sources, query, implementation="reference")
  np.testing.assert_array_equal(depth_attention(sources, query), want)
  with pytest.raises(ValueError, match=r"'mosaic_gpu'.*platform 'gpu'.*'cpu'"):
    depth_attention(sources, query, implementation="mosaic_gpu")
