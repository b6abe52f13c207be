"""What rounding to bfloat16 takes from a number, and how much of it comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.kernels.depth_attention import bf16_remainder


def numbers(exponents, count=4096):
  """Float32 numbers of both signs whose exponents are in a range."""
  rng = np.random.default_rng(3)
  mantissas = rng.uniform(1, 2, count) * rng.choice([-1, 1], count)
  return jnp.asarray(np.ldexp(mantissas, rng.integers(*exponents, count)), jnp.float32)


def there_and_back(*arrays):
  """Packs and restores arrays; also returns them rounded."""
  rounded = [jax.lax.reduce_precision(x, 8, 7) for x in arrays]
  dtype = jnp.int8 if len(arrays) <= 2 else jnp.int16
  words = bf16_remainder.pack(
    [bf16_remainder.remainder(*pair) for pair in zip(arrays, rounded, strict=True)], dtype
  )
  assert words.dtype == dtype
  words = words.astype(jnp.int32)
  return [bf16_remainder.restore(r, words, index) for index, r in enumerate(rounded)], rounded


@pytest.mark.parametrize("exponents", [(-1, 1), (-120, -100), (100, 127)])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_twelve_bits_come_back(count, exponents):
  arrays = jnp.split(numbers(exponents), 4)[:count]
  restored, rounded = there_and_back(*arrays)
  for x, close, coarse in zip(*map(np.float64, (arrays, restored, rounded)), strict=True):
    error, before = (np.abs(y / x - 1) for y in (close, coarse))
    assert np.all(error <= 2**-11)  # where seven steps stand for eight, else half of that
    assert np.mean(error > 2**-12) <= 1 / 16
    assert np.mean(error) <= np.mean(before) / 14


def test_what_bfloat16_has_comes_back_exactly():
  values = np.array([0.0, -0.0, 1.0, -1.5, 3e38, -1e-30, 2.0**-126, 255.0], np.float32)
  exact = jnp.asarray(values, jnp.bfloat16).astype(jnp.float32)
  restored, _ = there_and_back(exact, -exact)
  np.testing.assert_array_equal(np.stack(restored), np.stack([exact, -exact]))
  np.testing.assert_array_equal(np.signbit(restored[0]), np.signbit(exact))


def test_halfway_numbers_are_a_sixteenth_off():
  step = 2.0**-7
  x = 1 + step * (np.arange(8, dtype=np.float32) + 0.5)
  ((restored,), (rounded,)) = there_and_back(jnp.asarray(x))
  np.testing.assert_array_equal(np.abs(rounded - x), step / 2)
  assert set(np.float64(np.abs(restored - x))) == {0.0, step / 16}


def test_nan_stays_nan():
  x = jnp.asarray([np.nan, 1.0, -np.nan, 2.0], jnp.float32)
  ((restored,), _) = there_and_back(x)
  np.testing.assert_array_equal(np.isnan(restored), np.isnan(x))


def test_words_take_a_quarter():
  assert [bf16_remainder.num_words(n, jnp.int16) for n in (1, 4, 5, 16)] == [1, 1, 2, 4]
  assert [bf16_remainder.num_words(n, jnp.int8) for n in (1, 4, 5, 16)] == [1, 2, 3, 8]
  kept = {d: bf16_remainder.is_kept(jnp.dtype(d)) for d in ("bfloat16", "float16", "float32")}
  assert kept == {"bfloat16": True, "float16": False, "float32": False}
