"""Text around what a model generates; the model here repeats the last token of its prompt."""

import jax.numpy as jnp

from resjax.data.tokenizer import ByteTokenizer
from resjax.study.trained_model import TrainedModel
from resjax.train.runs import sample
from tests.helpers import decoders


def test_prompts_of_different_length_end_where_the_model_goes_on(monkeypatch):
  seen = []

  def repeat(model, rows, num_tokens, *, lengths, **options):
    seen.append(options["stop"])
    ends = jnp.repeat(rows[:, -1:], num_tokens - 1, axis=1)
    first = jnp.take_along_axis(rows, rows.shape[1] - lengths[:, None], axis=1)  # the end of text
    return jnp.concatenate([rows, ends, first], axis=1)

  monkeypatch.setattr(sample, "generate", repeat)
  options = {"num_tokens": 4, "temperature": 0.0, "seed": 0, "stop": "e"}
  words = ByteTokenizer()
  decoder = decoders.decoder(decoders.config(vocab_size=words.vocab_size))
  found = sample.sample_text(TrainedModel("it", decoder, words, 8), ["depth", "a", ""], **options)
  assert found == ["hhh", "aaa", ""]
  assert seen == [(words.eot_id, ord("e"))]
