import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.models.decoder import Decoder
from resjax.models.sampling import generate, restrict
from tests.helpers import decoders

CONFIG = decoders.config("gpt2")
PROMPT = decoders.tokens(CONFIG, length=4)
KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def model():
  return decoders.decoder(CONFIG)


def test_sampling_is_a_function_of_the_key(model):
  sample = jax.jit(lambda key: generate(model, PROMPT, 8, key=key))
  once, again, other = sample(KEY), sample(KEY), sample(jax.random.key(1))
  np.testing.assert_array_equal(once, again)
  assert (once != other).any()
  np.testing.assert_array_equal(once[:, :4], PROMPT)
  assert once.shape == (2, 12) and once.dtype == PROMPT.dtype


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_next_token_frequencies_are_the_tempered_softmax(model, temperature):
  rows = 4096
  prompt = jnp.tile(PROMPT[:1], (rows, 1))
  sample = jax.jit(lambda p: generate(model, p, 1, temperature=temperature, key=KEY)[:, -1])
  got = sample(prompt)
  logits = np.float64(model.logits(model(PROMPT[:1]))[0, -1]) / temperature
  p = np.exp(logits - logits.max())
  p /= p.sum()
  frequencies = np.bincount(np.asarray(got), minlength=CONFIG.vocab_size) / rows
  assert np.all(np.abs(frequencies - p) < 5 * np.sqrt(p * (1 - p) / rows) + 1 / rows)


def test_low_temperature_approaches_greedy(model):
  continued = functools.partial(generate, model, num_tokens=5, key=KEY)
  greedy, cold = (jax.jit(lambda p, t=t: continued(p, temperature=t)) for t in (0, 1e-4))
  np.testing.assert_array_equal(cold(PROMPT), greedy(PROMPT))


def test_no_new_tokens_is_the_prompt(model):
  np.testing.assert_array_equal(generate(model, PROMPT, 0, key=KEY), PROMPT)


def test_prompts_of_different_length_are_each_alone(model):
  padded = PROMPT.at[0, :2].set(7)
  greedy = functools.partial(generate, model, num_tokens=6, temperature=0, key=KEY)
  got = jax.jit(lambda p: greedy(p, lengths=jnp.array([2, 4])))(padded)
  alone = jax.jit(greedy)
  np.testing.assert_array_equal(got[:, :4], padded)
  np.testing.assert_array_equal(got[:1, 4:], alone(PROMPT[:1, 2:])[:, 2:])
  np.testing.assert_array_equal(got[1:], alone(PROMPT[1:]))


def test_rows_end_at_the_stop_token(model):
  free = np.asarray(jax.jit(lambda p: generate(model, p, 12, key=KEY))(PROMPT))
  new = free[:, 4:]
  stop = int(new[0, 3])
  got = jax.jit(lambda p: generate(model, p, 12, key=KEY, stop=(stop,)))(PROMPT)
  also = jax.jit(lambda p: generate(model, p, 12, key=KEY, stop=(stop, int(new[0, 1]))))(PROMPT)
  np.testing.assert_array_equal(also[0, 4:6], new[0, :2])
  assert (np.asarray(also)[0, 6:] == stop).all()  # ended by the second, filled with the first
  for row, whole in zip(np.asarray(got)[:, 4:], new, strict=True):
    found = np.flatnonzero(whole == stop)
    end = found[0] if len(found) else len(whole)
    np.testing.assert_array_equal(row[:end], whole[:end])
    assert (row[end:] == stop).all()
  assert (np.asarray(got)[0, 8:] == stop).all()


def test_the_loop_ends_when_all_rows_have_stopped(model, monkeypatch):
  runs = []
  whole = Decoder.decode

  def counted(self, *arguments):
    jax.debug.callback(lambda: runs.append(1))
    return whole(self, *arguments)

  monkeypatch.setattr(Decoder, "decode", counted)
  first = functools.partial(generate, model, PROMPT[:1], temperature=0, key=KEY)
  tokens = np.asarray(jax.jit(lambda: first(num_tokens=12))())[0, 4:]
  jax.effects_barrier()
  assert len(runs) == 12  # the prompt and all tokens but the last
  runs.clear()
  jax.jit(lambda: first(num_tokens=12, stop=(int(tokens[2]),)))().block_until_ready()
  jax.effects_barrier()
  assert len(runs) == 1 + list(tokens).index(tokens[2])


def restricted(logits, k, p):
  """Which tokens stay, by the definition, one row at a time."""
  order = np.argsort(-logits)
  order = order[: k or None]
  share = np.exp(logits[order] - logits[order].max())
  share /= share.sum()
  count = 1 + np.searchsorted(np.cumsum(share)[:-1], p) if p < 1 else len(order)
  stays = np.zeros(len(logits), bool)
  stays[order[:count]] = True
  return stays


@pytest.mark.parametrize(
  "k, p", [(0, 1.0), (1, 1.0), (5, 1.0), (40, 1.0), (0, 1e-6), (0, 0.3), (0, 0.9), (7, 0.6)]
)
def test_restrict_is_numpy(k, p):
  logits = np.random.default_rng(0).normal(size=(50, 31)) * 2
  got = np.asarray(restrict(jnp.asarray(logits), k, p))
  stays = np.stack([restricted(row, k, p) for row in logits])
  np.testing.assert_array_equal(np.isfinite(got), stays)
  np.testing.assert_array_equal(got[stays], np.float32(logits)[stays])


@pytest.mark.parametrize(
  "k, p, want",
  [
    (0, 0.5, [0]),  # exactly p is enough
    (0, 0.51, [0, 1]),
    (0, 0.76, [0, 1, 2, 3]),  # ties stay
    (3, 1.0, [0, 1, 2, 3]),
    (2, 0.6, [0]),  # 1/2 of 3/4
    (2, 0.7, [0, 1]),
  ],
)
def test_restrict_by_hand(k, p, want):
  logits = jnp.log2(jnp.array([0.5, 0.25, 0.125, 0.125])) * np.log(2)
  assert list(np.flatnonzero(np.isfinite(restrict(logits, k, p)))) == want


def test_sampled_tokens_are_among_those_that_stay(model):
  logits = np.asarray(model.logits(model(PROMPT))[:, -1])
  rows = jnp.repeat(PROMPT, 200, axis=0)
  sample = jax.jit(lambda p: generate(model, p, 1, top_k=3, temperature=3.0, key=KEY)[:, -1])
  for found, row in zip(np.asarray(sample(rows)).reshape(2, 200), logits, strict=True):
    assert set(found) == set(np.argsort(-row)[:3])


@pytest.mark.parametrize(
  "length, num_tokens, temperature, message",
  [
    (0, 3, 1.0, r"0 prompt tokens \+ 3 new.*at least one"),
    (4, 29, 1.0, r"4 prompt tokens \+ 29 new ones do not fit.*at most 32, the row length"),
    (4, -1, 1.0, r"-1 new ones"),
    (4, 2, -0.5, r"temperature=-0.5 must be 0 \(greedy\) or positive"),
  ],
)
def test_requests_that_cannot_be_met_are_refused(model, length, num_tokens, temperature, message):
  prompt = jnp.zeros((1, length), jnp.int32)
  with pytest.raises(ValueError, match=message):
    generate(model, prompt, num_tokens, temperature=temperature, key=KEY)


@pytest.mark.parametrize(
  "options, message",
  [
    ({"top_k": -1}, "top_k=-1 must be 0"),
    ({"top_p": 0.0}, "top_p=0.0 must be above 0, at most 1"),
    ({"top_p": 1.5}, "top_p=1.5 must be above 0, at most 1"),
    ({"temperature": float("nan")}, "temperature=nan must be"),
    ({"stop": (31,)}, r"stop=31 is no token; allowed: 0\.\.30"),
    ({"stop": (3, -1)}, "stop=-1 is no token"),
  ],
)
def test_options_out_of_range_are_refused(model, options, message):
  with pytest.raises(ValueError, match=message):
    generate(model, PROMPT, 2, key=KEY, **options)
