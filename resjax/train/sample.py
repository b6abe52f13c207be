"""Text from a model: prompt to tokens, tokens to text."""

import jax
import numpy as np

from resjax.data.tokenizer import Tokenizer
from resjax.models.sampling import generate
from resjax.train.state import ModelDef
from resjax.typing import PyTree


def sample_text(
  model: ModelDef,
  params: PyTree,
  tokenizer: Tokenizer,
  prompt: str,
  *,
  num_tokens: int,
  temperature: float,
  seed: int,
  num_samples: int = 1,
) -> list[str]:
  """Returns continuations of a prompt, each cut at the first end of text.

  Args:
    model: the decoder.
    params: its parameters.
    tokenizer: of the data that it was trained on.
    prompt: how the text begins; may be empty, every document starts with the end of text.
    num_tokens: length of a continuation.
    temperature: of the sampling; 0 takes the most probable token.
    seed: of the random numbers.
    num_samples: how many continuations.

  Raises:
    ValueError: prompt and continuation are longer than a row, or temperature is negative.
  """
  start = np.concatenate([[tokenizer.eot_id], *tokenizer.encode_batch([prompt])]).astype(np.int32)

  def run(params, prompts, key):
    decoder = model.bind(params)
    return generate(decoder, prompts, num_tokens, temperature=temperature, key=key)

  prompts = np.tile(start, (num_samples, 1))
  rows = np.asarray(jax.jit(run)(params, prompts, jax.random.key(seed)))[:, len(start) :]
  return [tokenizer.decode(_until_end(row, tokenizer.eot_id)) for row in rows]


def _until_end(row: np.ndarray, eot_id: int) -> np.ndarray:
  ends = np.flatnonzero(row == eot_id)
  return row[: ends[0]] if len(ends) else row
