import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from resjax.models.sampling import generate
from tests.helpers import decoders, fast

CONFIG = decoders.config("gpt2")
MODEL = decoders.decoder(CONFIG)
PROMPT = decoders.tokens(CONFIG, length=4)
KEY = jax.random.key(0)


def test_greedy_is_the_naive_loop():
  last_logits = fast.jit(lambda row: MODEL.logits(MODEL(row))[:, -1])
  row = PROMPT
  for _ in range(5):
    logits = last_logits(row)
    row = jnp.concatenate([row, jnp.argmax(logits, -1)[:, None]], axis=1)
  got = fast.jit(lambda p: generate(MODEL, p, 5, temperature=0, key=KEY))(PROMPT)
  np.testing.assert_array_equal(got, row)


def test_sampling_is_a_function_of_the_key():
  sample = fast.jit(lambda key: generate(MODEL, PROMPT, 8, key=key))
  once, again, other = sample(KEY), sample(KEY), sample(jax.random.key(1))
  np.testing.assert_array_equal(once, again)
  assert (once != other).any()
  np.testing.assert_array_equal(once[:, :4], PROMPT)
  assert once.shape == (2, 12) and once.dtype == PROMPT.dtype


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_next_token_frequencies_are_the_tempered_softmax(temperature):
  rows = 4096
  prompt = jnp.tile(PROMPT[:1], (rows, 1))
  sample = fast.jit(lambda p: generate(MODEL, p, 1, temperature=temperature, key=KEY)[:, -1])
  got = sample(prompt)
  logits = np.float64(MODEL.logits(MODEL(PROMPT[:1]))[0, -1]) / temperature
  p = np.exp(logits - logits.max())
  p /= p.sum()
  frequencies = np.bincount(np.asarray(got), minlength=CONFIG.vocab_size) / rows
  assert np.all(np.abs(frequencies - p) < 5 * np.sqrt(p * (1 - p) / rows) + 1 / rows)


def test_low_temperature_approaches_greedy():
  continued = functools.partial(generate, MODEL, num_tokens=5, key=KEY)
  greedy, cold = (fast.jit(lambda p, t=t: continued(p, temperature=t)) for t in (0, 1e-4))
  np.testing.assert_array_equal(cold(PROMPT), greedy(PROMPT))


def test_no_new_tokens_is_the_prompt():
  np.testing.assert_array_equal(generate(MODEL, PROMPT, 0, key=KEY), PROMPT)


@pytest.mark.parametrize(
  "length, num_tokens, temperature, message",
  [
    (0, 3, 1.0, r"0 prompt tokens \+ 3 new.*at least one"),
    (4, 29, 1.0, r"4 prompt tokens \+ 29 new ones do not fit.*at most 32 \(config.data.seq_len\)"),
    (4, -1, 1.0, r"-1 new ones"),
    (4, 2, -0.5, r"temperature=-0.5 must be 0 \(greedy\) or positive"),
  ],
)
def test_requests_that_cannot_be_met_are_refused(length, num_tokens, temperature, message):
  prompt = jnp.zeros((1, length), jnp.int32)
  with pytest.raises(ValueError, match=message):
    generate(MODEL, prompt, num_tokens, temperature=temperature, key=KEY)
