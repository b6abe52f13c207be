import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo as fused

from resjax.base.sharding import Layout
from resjax.kernels.self_attention import (
  ALL_EARLIER,
  Scores,
  Window,
  api,
  cached_attention,
  causal_attention,
  cudnn,
)
from resjax.kernels.self_attention import reference as plain
from resjax.kernels.self_attention.shards import halves
from resjax.testing.compare import assert_close
from tests.helpers import layouts, reference


def example(length, batch=2, num_heads=4, num_kv_heads=2, width=8, seed=0):
  """q, k, v and packed segment ids, with padding (0) at the end of the first row."""
  rng = np.random.default_rng(seed)
  q = rng.normal(size=(batch, length, num_heads, width))
  k, v = rng.normal(size=(2, batch, length, num_kv_heads, width))
  segment_ids = 1 + np.sort(rng.integers(0, 3, size=(batch, length)), axis=1)
  segment_ids[0, -length // 8 :] = 0
  return *(a.astype(np.float32) for a in (q, k, v)), segment_ids.astype(np.int32)


xla = functools.partial(causal_attention, layout=Layout(), implementation="xla")
splash = functools.partial(
  causal_attention, layout=Layout(), implementation="splash", interpret=True
)


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
def test_xla_is_numpy(num_kv_heads):
  q, k, v, segment_ids = example(16, num_kv_heads=num_kv_heads)
  want = reference.causal_attention(*(np.asarray(a, np.float64) for a in (q, k, v)), segment_ids)
  got = jax.jit(xla)(q, k, v, segment_ids)
  assert_close(got, want, 1e-6)
  automatic = functools.partial(causal_attention, layout=Layout())  # on CPU
  np.testing.assert_array_equal(jax.jit(automatic)(q, k, v, segment_ids), got)


def test_float16_runs_on_a_cpu_and_is_numpy():
  q, k, v, segment_ids = example(16)
  half = [a.astype(np.float16) for a in (q, k, v)]
  want = reference.causal_attention(*(np.asarray(a, np.float64) for a in half), segment_ids)
  got = jax.jit(xla)(*half, segment_ids)
  assert got.dtype == jnp.float16
  assert_close(np.float64(got), want, 2e-3)


@pytest.mark.parametrize("window", [1, 2, 7, 100])
def test_a_window_in_xla_is_numpy(window):
  q, k, v, segment_ids = example(16)
  wide = (np.asarray(a, np.float64) for a in (q, k, v))
  want = reference.causal_attention(*wide, segment_ids, window)
  call = functools.partial(xla, window=Window((window,)))
  assert_close(jax.jit(call)(q, k, v, segment_ids), want, 1e-6)


@pytest.mark.parametrize("window", [0, 2, 100])
def test_splash_is_xla(window):
  q, k, v, segment_ids = example(256)
  d = np.random.default_rng(1).normal(size=q.shape).astype(np.float32)

  @functools.partial(jax.jit, static_argnums=0)
  def both(call, q, k, v, segment_ids, d):
    attend = functools.partial(call, segment_ids=segment_ids, window=Window((window,)))
    out, vjp = jax.vjp(attend, q, k, v)
    return out, vjp(d)

  (want, wants), (got, gradients) = (both(call, q, k, v, segment_ids, d) for call in (xla, splash))
  assert_close(got, want, 1e-5)
  assert_close(gradients, wants, 1e-5)


CAPPED = Scores(scale=0.4, softcap=1.5)


def test_caps_and_scales_are_numpy():
  q, k, v, segment_ids = example(16)
  wide = (np.asarray(a, np.float64) for a in (q, k, v))
  want = reference.causal_attention(*wide, segment_ids, 5, scale=0.4, softcap=1.5)
  call = functools.partial(xla, window=Window((0, 5), jnp.asarray(1)), scores=CAPPED)
  assert_close(jax.jit(call)(q, k, v, segment_ids), want, 1e-6)
  wide = (np.asarray(a, np.float64) for a in (q, k, v))
  want = reference.causal_attention(*wide, segment_ids, scale=0.4)
  call = functools.partial(xla, scores=Scores(0.4))
  assert_close(jax.jit(call)(q, k, v, segment_ids), want, 1e-6)


@functools.partial(jax.jit, static_argnums=0)
def capped_and_gradients(call, q, k, v, segment_ids, index):
  window = Window((0, 9), index)
  out, vjp = jax.vjp(lambda *a: call(*a, segment_ids, window=window, scores=CAPPED), q, k, v)
  return out, vjp(jnp.cos(jnp.arange(out.size)).reshape(out.shape))


@pytest.mark.parametrize("index", [0, 1])
def test_splash_takes_caps_and_the_window_of_a_layer(index):
  inputs = example(256)
  want, got = (capped_and_gradients(call, *inputs, np.int32(index)) for call in (xla, splash))
  assert_close(got, want, 1e-5)


def test_cudnn_has_no_cap_and_auto_takes_another():
  *qkv, segment_ids = example(128)
  qkv = [a.astype("bfloat16") for a in qkv]
  with pytest.raises(ValueError, match=r"no soft cap, .*attention_softcap is 1\.5; use"):
    causal_attention(*qkv, segment_ids, layout=faked("gpu"), scores=CAPPED, implementation="cudnn")
  automatic = functools.partial(causal_attention, layout=faked("gpu"))
  got, want = (
    jax.jit(functools.partial(call, scores=CAPPED))(*qkv, segment_ids) for call in (automatic, xla)
  )
  np.testing.assert_array_equal(got, want)


def test_splash_on_a_mesh_is_xla():
  layout = layouts.layout(devices=jax.devices()[:4], data=2, tensor=2)
  q, k, v, segment_ids = example(128)
  call = functools.partial(splash, layout=layout)
  got, want = (jax.jit(attend)(q, k, v, segment_ids) for attend in (call, xla))
  assert_close(got, want, 1e-5)


@pytest.mark.parametrize(
  "implementation, windows",
  [("splash", (0,)), ("splash", (200,)), ("xla", (0,)), ("xla", (9,)), ("xla", (9, 0))],
)
@pytest.mark.parametrize("shards, length", [(3, 384), (4, 512)])
def test_a_split_sequence_changes_nothing(monkeypatch, implementation, windows, shards, length):
  """Neither does it whether the queries of a device go chunk by chunk.

  No row of 384 tokens divides by 3 x 3, which the library's masks ask for where they are told of
  shards; they do nothing else with the number.
  """
  layout = layouts.layout(
    "long_context", devices=jax.devices()[: 2 * shards], tensor=2, sequence=shards
  )
  q, k, v, segment_ids = example(length)
  call = {"splash": splash, "xla": xla}[implementation]
  monkeypatch.setattr(plain, "_CHUNK", 24)
  d = np.random.default_rng(1).normal(size=q.shape).astype(np.float32)
  index = jnp.int32(1) if len(windows) > 1 else None

  def both(layout, q, k, v):
    out, vjp = jax.vjp(
      lambda *a: call(*a, segment_ids, window=Window(windows, index), layout=layout), q, k, v
    )
    return out, vjp(d)

  got, want = (jax.jit(functools.partial(both, on))(q, k, v) for on in (layout, Layout()))
  assert_close(got, want, 5e-7)


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_devices_that_split_a_row_have_equally_much_to_do(count):
  seen = [sum(half + 1 for half in pair) for pair in halves(count)]
  assert seen == count * [2 * count + 1]
  assert sorted(np.ravel(halves(count))) == [*range(2 * count)]


def test_a_split_row_needs_memory_in_proportion_to_its_length():
  """Without the chunks it would be quadratic: the scores of a device."""
  layout = layouts.layout("long_context", devices=jax.devices()[:2], sequence=2)

  def size(length):
    *qkv, segment_ids = example(length, batch=1, num_heads=8)

    def loss(q, k, v):
      return jnp.sum(xla(q, k, v, segment_ids, layout=layout))

    program = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*qkv).compile()
    return program.memory_analysis().temp_size_in_bytes

  assert size(4096) < 2.2 * size(2048)


def test_cudnn_takes_whole_rows_alone():
  split = layouts.layout("long_context", sequence=2)
  layout = type("Faked", (Layout,), {"platform": "gpu"})(split.mesh, split.rules)
  *qkv, segment_ids = example(128)
  with pytest.raises(ValueError, match=r"'cudnn' cannot run: .*config\.mesh\.sequence splits rows"):
    causal_attention(*qkv, segment_ids, layout=layout, implementation="cudnn")


def faked(platform):
  """A layout that says that it is on another platform."""
  return type("Faked", (Layout,), {"platform": platform})()


def test_cudnn_takes_narrow_even_heads():
  for width in (12, 136):
    *qkv, segment_ids = example(128, width=width)
    qkv = [a.astype("bfloat16") for a in qkv]
    with pytest.raises(ValueError, match=f"a head is {width} wide .*no multiple of 8 up to 128"):
      causal_attention(*qkv, segment_ids, layout=faked("gpu"), implementation="cudnn")


@pytest.mark.parametrize(
  "implementation, platform, length, dtype, message",
  [
    ("splash", "cpu", 128, "float32", "needs platform 'tpu', the mesh is on 'cpu'"),
    ("cudnn", "cpu", 128, "bfloat16", "needs platform 'gpu', the mesh is on 'cpu'"),
    ("splash", "gpu", 128, "bfloat16", "needs platform 'tpu', the mesh is on 'gpu'"),
    ("splash", "tpu", 192, "bfloat16", r"192 \(config.data.seq_len\) is no multiple of 128"),
    ("cudnn", "gpu", 128, "float32", "16-bit activations, config.model.dtype gives float32"),
    ("cudnn", "gpu", 127, "bfloat16", r"row length 127 \(config.data.seq_len\) is odd"),
    ("flash", "cpu", 128, "float32", "the names are auto, xla, cudnn, splash"),
  ],
)
def test_implementations_that_cannot_run_are_refused(
  implementation, platform, length, dtype, message
):
  *qkv, segment_ids = example(length)
  qkv = [a.astype(dtype) for a in qkv]
  with pytest.raises(ValueError, match=message) as raised:
    causal_attention(*qkv, segment_ids, layout=faked(platform), implementation=implementation)
  assert f"config.model.attention={implementation!r}" in str(raised.value)


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_auto_falls_back_to_xla_where_no_kernel_runs(platform):
  q, k, v, segment_ids = example(16)  # float32, and no multiple of 128
  automatic = functools.partial(causal_attention, layout=faked(platform))
  got, want = (jax.jit(call)(q, k, v, segment_ids) for call in (automatic, xla))
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("window, scores", [(0, Scores()), (5, Scores()), (0, CAPPED)])
def test_queries_in_chunks_see_the_keys_of_whole_rows(window, scores, monkeypatch):
  monkeypatch.setattr(plain, "_CHUNK", 4)
  q, k, v, segment_ids = example(22)
  options = {"window": Window((window,)), "scores": scores}
  prompt = functools.partial(causal_attention, layout=Layout(), prompt=True, **options)
  got = jax.jit(prompt)(q, k, v, segment_ids)
  want = np.asarray(jax.jit(functools.partial(xla, **options))(q, k, v, segment_ids))
  assert_close(got, want, 1e-6)
  # The last tokens alone, before slots that hold no token yet.
  keys, values = (np.pad(a, ((0, 0), (0, 9), (0, 0), (0, 0)), constant_values=7) for a in (k, v))
  key_ids = np.pad(segment_ids, ((0, 0), (0, 9)))
  rest = jax.jit(functools.partial(cached_attention, **options))(
    q[:, 9:], keys, values, segment_ids[:, 9:], key_ids, np.int32(9)
  )
  assert_close(rest, want[:, 9:], 1e-6)


@pytest.mark.parametrize("length", [200, 256])
def test_prompts_of_any_length_go_through_splash_on_a_tpu(length):
  *qkv, segment_ids = example(length)
  call = functools.partial(causal_attention, layout=faked("tpu"), prompt=True)
  text = jax.jit(call).trace(*qkv, segment_ids).lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("tpu_custom_call") == 1
  assert f"x{length}x{length}x" not in text and f"x{length}x8x256x" not in text


def test_a_padded_prompt_through_splash_is_xla():
  *qkv, segment_ids = example(200)
  options = {"layout": faked("tpu"), "prompt": True, "interpret": True}
  prompt = functools.partial(causal_attention, **options)
  got, want = (jax.jit(call)(*qkv, segment_ids) for call in (prompt, xla))
  assert_close(got, want, 1e-5)


def gpu_text(monkeypatch, hopper, window=ALL_EARLIER, num_kv_heads=2):
  """The program of attention and its reverse, lowered for a GPU that is not there."""
  monkeypatch.setattr(fused, "check_cudnn_version", lambda: 91000)
  monkeypatch.setattr(fused, "check_compute_capability", lambda least: hopper)
  monkeypatch.setattr(fused, "is_cuda_compute_capability_equal", lambda one: False)
  *qkv, segment_ids = example(128, width=16, num_kv_heads=num_kv_heads)
  qkv = [a.astype("bfloat16") for a in qkv]
  options = {"layout": faked("gpu"), "implementation": "cudnn", "window": window}

  def both(*qkv):
    out, vjp = jax.vjp(lambda *a: causal_attention(*a, segment_ids, **options), *qkv)
    return vjp(out)

  return jax.jit(both).trace(*qkv).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("num_kv_heads", [4, 2])
def test_cudnn_is_told_about_segments_without_a_bias(num_kv_heads, monkeypatch):
  text = gpu_text(monkeypatch, hopper=True, num_kv_heads=num_kv_heads)
  calls = [line for line in text.splitlines() if "__cudnn$fmha" in line]
  assert len(calls) == 4  # causal alone and packed, forward and reverse
  assert not any("ScaleBias" in call for call in calls)
  assert sum("PADDING_CAUSAL" in call for call in calls) == 2
  operands = [call[call.index(": (") : call.index(") ->")] for call in calls]
  assert not any("x128x128x" in types for types in operands)


def test_cudnn_has_a_kernel_for_each_window(monkeypatch):
  text = gpu_text(monkeypatch, hopper=True, window=Window((0, 9), jnp.asarray(1)))
  calls = [line for line in text.splitlines() if "__cudnn$fmha" in line]
  assert len(calls) == 8 and not any("ScaleBias" in call for call in calls)
  assert sum("sliding_window_length\\22: 9" in call for call in calls) == 4


def test_cudnn_before_hopper_takes_a_bias_for_several_segments_alone(monkeypatch):
  text = gpu_text(monkeypatch, hopper=False)
  calls = [line for line in text.splitlines() if "__cudnn$fmha" in line]
  with_bias = ["ScaleBias" in call for call in calls]
  assert len(calls) == 4 and sum(with_bias) == 2


def test_places_of_segments_are_as_jax_describes_them():
  ids = np.array([[1, 1, 2, 3, 3, 0], [4, 4, 4, 4, 4, 4]])
  starts = np.diff(ids, axis=1, prepend=ids[:, :1] - 1) != 0
  lengths, offsets = jax.jit(cudnn.segments, static_argnums=1)(starts, 4)
  np.testing.assert_array_equal(lengths, [[2, 1, 2, 1], [6, -1, -1, -1]])
  np.testing.assert_array_equal(offsets, [[0, 2, 3, 5, -1], [0, -1, -1, -1, -1]])


@pytest.mark.parametrize("most, ids", [(2, None), (64, None), (64, 1)])
@pytest.mark.parametrize("window", [ALL_EARLIER, Window((0, 9), jnp.asarray(1))])
def test_rows_take_the_branch_that_can_express_them(most, ids, window, monkeypatch):
  """With XLA in place of both calls of cuDNN, all of them give the attention of packed rows."""
  q, k, v, segment_ids = example(64)
  segment_ids = np.full_like(segment_ids, ids) if ids else segment_ids
  monkeypatch.setattr(cudnn, "MAX_SEGMENTS", most)
  monkeypatch.setattr(cudnn, "takes_segments", lambda: True)

  def one_segment(q, k, v, _, __, size, scores):
    return xla(q, k, v, jnp.ones_like(segment_ids), window=Window((size,)), scores=scores)

  def packed(q, k, v, _, starts, size, scores):
    return xla(q, k, v, jnp.cumsum(starts, axis=1), window=Window((size,)), scores=scores)

  monkeypatch.setattr(cudnn, "_one_segment", one_segment)
  monkeypatch.setattr(cudnn, "_packed", packed)
  otherwise = functools.partial(api._beyond_cudnn, scores=Scores())
  call = functools.partial(cudnn.cudnn_attention, scores=Scores(), otherwise=otherwise)

  @jax.jit
  def both(q, k, v, segment_ids):
    options = {"segment_ids": segment_ids, "window": window}
    want, want_vjp = jax.vjp(functools.partial(xla, **options), q, k, v)
    got, got_vjp = jax.vjp(functools.partial(call, **options), q, k, v)
    return (got, want), (got_vjp(want), want_vjp(want))

  outputs, gradients = both(q, k, v, segment_ids)
  assert_close(*outputs, 1e-6)
  assert_close(*gradients, 1e-6)
