import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from resjax.kernels.depth_attention import Sources, depth_attention, make_bank, store
from resjax.kernels.depth_attention.operands import Operands, Read
from resjax.kernels.depth_attention.reference import direct, each_source
from resjax.testing.compare import assert_close
from tests.helpers import reference
from tests.helpers.gpus import lowered

D, TOKENS = 16, (2, 3)
COUNTS = (1, 2, 5, 9, 16)
HEADS = (1, 4)


def example(count, seed=0):
  """query, key gain, sources and cotangent, float32 numpy."""
  rng = np.random.default_rng(seed)
  shapes = (D,), (D,), (count, *TOKENS, D), (*TOKENS, D)
  query, gain, sources, dh = (rng.normal(size=s).astype(np.float32) for s in shapes)
  return query, gain, sources, dh


def wide(*arrays):
  return tuple(np.asarray(a, np.float64) for a in arrays)


def listed(query, gain, sources, **options):
  return depth_attention(list(sources), query, key_scale=gain, **options)


def banked(query, gain, bank, num_valid, **options):
  sources = Sources(bank=bank, num_valid=num_valid)
  return depth_attention(sources, query, key_scale=gain, **options)


read_listed = jax.jit(listed, static_argnames=("num_heads", "eps"))
read_banked = jax.jit(banked, static_argnames=("num_valid", "num_heads"))


@functools.partial(jax.jit, static_argnames="heads")
def listed_and_gradients(query, gain, sources, dh, heads):
  h, vjp = jax.vjp(functools.partial(listed, num_heads=heads), query, gain, sources)
  return h, vjp(dh)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("count", COUNTS)
def test_values_and_gradients_are_those_of_numpy(count, heads):
  query, gain, sources, dh = example(count)
  h, gradients = listed_and_gradients(query, gain, sources, dh, heads)
  w, gamma, values, d = wide(query, gain, sources, dh)
  assert_close(h, reference.depth_read(w, gamma, values, 1e-6, heads), 1e-6)
  assert_close(gradients, reference.depth_read_gradients(w, gamma, values, 1e-6, d, heads), 1e-5)


@pytest.mark.parametrize("heads", [1, 2, D])
@pytest.mark.parametrize("count", [2, 5])
def test_float64(count, heads):
  query, gain, sources, dh = wide(*example(count))
  with jax.enable_x64(True):
    h, gradients = listed_and_gradients(query, gain, sources, dh, heads)
  assert_close(h, reference.depth_read(query, gain, sources, 1e-6, heads), 1e-14)
  want = reference.depth_read_gradients(query, gain, sources, 1e-6, dh, heads)
  assert_close(gradients, want, 1e-13)


@pytest.mark.parametrize("heads", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_a_head_is_one_headed_attention_with_the_other_channels_of_the_query_zero(heads):
  query, gain, sources, _ = example(5)
  h = np.asarray(read_listed(query, gain, sources, num_heads=heads))
  for c in reference.heads(D, heads):
    alone = np.zeros_like(query)
    alone[c] = query[c]
    assert_close(h[..., c], np.asarray(read_listed(alone, gain, sources))[..., c], 1e-6)


def pull_banked(query, gain, bank, dh, num_valid, heads):
  read = functools.partial(banked, num_valid=num_valid, num_heads=heads)
  h, vjp = jax.vjp(read, query, gain, bank)
  return h, vjp(dh)


banked_and_gradients = jax.jit(pull_banked, static_argnames=("num_valid", "heads"))


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("count", COUNTS)
def test_bank_is_the_list(count, heads):
  query, gain, sources, dh = example(count)
  want, wants = listed_and_gradients(query, gain, sources, dh, heads)
  got, gradients = banked_and_gradients(query, gain, sources, dh, count, heads)
  assert_close(got, want, 1e-6)
  assert_close(gradients, wants, 1e-5)


@pytest.mark.parametrize("in_bank", [1, 3, 4])
def test_bank_and_recent_sources_together_are_the_list(in_bank):
  query, gain, sources, _ = example(5)

  @jax.jit
  def read_split(query, gain, sources):
    split = Sources(tuple(sources[in_bank:]), sources[:in_bank], in_bank)
    return depth_attention(split, query, key_scale=gain)

  got = read_split(query, gain, sources)
  assert_close(got, read_listed(query, gain, sources), 1e-6)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("garbage", [1e4, -1e18])  # the square is finite
@pytest.mark.parametrize("num_valid", [1, 3])
def test_slots_that_are_not_valid_do_not_leak(garbage, num_valid, heads):
  query, gain, sources, dh = example(5)
  want, (*wants, d_sources) = listed_and_gradients(query, gain, sources[:num_valid], dh, heads)
  bank = sources.copy()
  bank[num_valid:] = garbage
  call = jax.jit(pull_banked, static_argnames="heads")  # num_valid is traced, as in a scan
  got, (*shared, d_bank) = jax.tree.map(np.asarray, call(query, gain, bank, dh, num_valid, heads))
  assert_close(got, want, 1e-6)
  assert_close(shared, wants, 1e-5)
  assert_close(d_bank[:num_valid], d_sources, 1e-5)
  np.testing.assert_array_equal(d_bank[num_valid:], 0)


@pytest.mark.parametrize("heads", HEADS)
def test_sources_in_turn_and_at_once_give_the_same(monkeypatch, heads):
  """CPUs take slots of a large bank in turn, other platforms all at once."""
  monkeypatch.setattr(each_source, "_SMALL", 0)
  query, _, sources, dh = wide(*example(6))
  operands = Operands(sources[:5], (sources[5],), np.int32([3, 1]), query, dh, 1 + query)
  read = Read(heads, 1e-6, adds=True, threaded=True)

  def found():
    out, running, stats = direct.forward(read, operands)
    kept = operands._replace(recent=(running,), addend=None)
    later = 2 * sources[:5], (2 * running,)
    return (out, running), direct.backward(read, kept, stats, dh, later)

  with jax.enable_x64(True):
    got = found()
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *a, cpu, default: default(*a))
    want = found()
  assert_close(got, want, 1e-14)
  np.testing.assert_array_equal(got[1].bank[3:], 2 * sources[3:5])


@pytest.mark.parametrize(("platform", "in_turn"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_a_cpu_takes_the_slots_of_a_large_bank_in_turn(platform, in_turn):
  query, gain, *_ = example(1)
  grad = jax.grad(lambda bank: jnp.sum(banked(query, gain, bank, 3)))
  for tokens, large in ((16, False), (4096, True)):
    text = lowered(grad, jnp.ones((5, tokens, D)), platform=platform)
    assert ("stablehlo.while" in text) == (in_turn and large)


@pytest.mark.parametrize("manual", [False, True])
def test_sources_in_turn_stay_split_over_devices(monkeypatch, manual):
  monkeypatch.setattr(each_source, "_SMALL", 0)
  query, gain, *_ = example(1)
  bank = np.random.default_rng(1).normal(size=(5, 4, 6, D)).astype(np.float32)
  grad = jax.grad(lambda bank: jnp.sum(banked(query, gain, bank, 3) ** 2))
  want = grad(bank)
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:4])
  rows = P(None, "data")
  with jax.set_mesh(mesh):
    split = jax.shard_map(grad, in_specs=rows, out_specs=rows) if manual else grad
    got = jax.jit(split)(jax.device_put(bank, NamedSharding(mesh, rows)))
  assert got.sharding.spec[:2] == (None, "data")
  assert_close(got, want, 1e-6)


@pytest.mark.parametrize("traced", [False, True])
def test_last_source_can_be_switched_off(traced):
  query, gain, sources, dh = example(4)

  def pull(query, gain, sources, dh, last_valid):
    h, vjp = jax.vjp(functools.partial(listed, last_valid=last_valid), query, gain, sources)
    return h, vjp(dh)

  call = jax.jit(pull, static_argnames=() if traced else "last_valid")
  for last_valid, used in ((False, 3), (True, 4)):
    want, wants = listed_and_gradients(query, gain, sources[:used], dh, 1)
    got, gradients = call(query, gain, sources, dh, last_valid)
    assert_close(got, want, 1e-6)
    d_sources = np.asarray(gradients[2])
    assert_close(d_sources[:used], wants[2], 1e-5)
    np.testing.assert_array_equal(d_sources[used:], 0)


@pytest.mark.parametrize("heads", HEADS)
def test_zero_query_is_the_mean(heads):
  _, gain, sources, _ = example(9)
  h = read_listed(np.zeros(D, np.float32), gain, sources, num_heads=heads)
  assert_close(h, sources.mean(axis=0), 1e-6)


def test_sources_of_one_direction_have_equal_logits_and_raw_values():
  query, gain, sources, _ = example(1)
  scales = np.array([1.0, 2.0, 4.0, 8.0], np.float32)  # powers of two: the same bits after a norm
  same = scales[:, None, None, None] * sources
  got = read_listed(query, gain, same, eps=1e-30)
  assert_close(got, scales.mean() * sources[0], 1e-6)


@pytest.mark.parametrize("exponents", [(15, -15, 0, 5), (-15, -15, -15, -15), (17, 17, 17, 17)])
def test_huge_and_tiny_sources(exponents):
  query, gain, sources, dh = example(4)
  scaled = sources * (10.0 ** np.array(exponents))[:, None, None, None].astype(np.float32)
  h, gradients = listed_and_gradients(query, gain, scaled, dh, 1)
  want = reference.depth_read(*wide(query, gain, scaled), 1e-6)
  assert_close(h, want, 1e-5)
  assert all(np.isfinite(leaf).all() for leaf in gradients)


def test_huge_logits_select_one_source():
  query, gain, sources, dh = example(5)
  h, gradients = listed_and_gradients(1e6 * query, gain, sources, dh, 1)
  keys = sources / np.sqrt((sources**2).mean(-1, keepdims=True))
  chosen = np.argmax(np.sum(query * gain * keys, axis=-1), axis=0)
  picked = np.take_along_axis(sources, chosen[None, ..., None], axis=0)[0]
  np.testing.assert_allclose(h, picked, rtol=1e-6)
  assert all(np.isfinite(leaf).all() for leaf in gradients)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("use_bank", [False, True])
def test_bfloat16_sources_are_mixed_in_float32_and_rounded_once(use_bank, heads):
  query, gain, sources, dh = example(16)
  rounded, d = sources.astype(jnp.bfloat16), dh.astype(jnp.bfloat16)
  banked_16 = functools.partial(banked_and_gradients, num_valid=16)
  call = banked_16 if use_bank else listed_and_gradients
  h, (dquery, dgain, dsources) = call(query, gain, rounded, d, heads=heads)
  assert h.dtype == jnp.bfloat16
  want = reference.depth_read(*wide(query, gain, rounded), 1e-6, heads)
  half_ulp = float(jnp.finfo(jnp.bfloat16).eps) / 2
  np.testing.assert_allclose(np.float64(h), want, rtol=1.01 * half_ulp, atol=1e-6)
  assert dquery.dtype == dgain.dtype == jnp.float32 and dsources.dtype == jnp.bfloat16
  wants = reference.depth_read_gradients(*wide(query, gain, rounded), 1e-6, np.float64(d), heads)
  assert_close((dquery, dgain), wants[:2], 1e-5)  # sums over tokens stay float32
  assert_close(dsources, wants[2], 2 * half_ulp)


def test_no_key_gain_is_a_gain_of_one():
  query, _, sources, _ = example(3)
  got = jax.jit(lambda query, sources: depth_attention(list(sources), query))(query, sources)
  np.testing.assert_array_equal(got, read_listed(query, np.ones(D, np.float32), sources))


@pytest.mark.parametrize("tokens", [(), (4,), (1, 2, 3)])
def test_leading_axes_are_free(tokens):
  query, gain, _, _ = example(1)
  sources = np.random.default_rng(1).normal(size=(3, *tokens, D)).astype(np.float32)
  for heads in (1, 4):
    want = reference.depth_read(*wide(query, gain, sources), 1e-6, heads)
    for read in (read_listed, functools.partial(read_banked, num_valid=3)):
      h = read(query, gain, sources, num_heads=heads)
      assert h.shape == (*tokens, D)
      assert_close(h, want, 1e-6)


def test_bank_holds_what_is_stored():
  _, _, sources, _ = example(4)
  bank = make_bank(tuple(sources[:2]), 5)
  np.testing.assert_array_equal(bank, [*sources[:2], *np.zeros((3, *TOKENS, D))])
  bank = jax.jit(store)(bank, 2, tuple(sources[2:]))
  np.testing.assert_array_equal(bank, [*sources, np.zeros((*TOKENS, D))])
