"""Text from a model: prompts to tokens, tokens to text."""

from collections.abc import Sequence

import jax
import numpy as np

from resjax.data.tokenizer import END_OF_TEXT, Tokenizer
from resjax.models.model_def import ModelDef
from resjax.models.sampling import generate
from resjax.typing import PyTree


def sample_text(
  model: ModelDef,
  params: PyTree,
  tokenizer: Tokenizer,
  prompts: Sequence[str],
  *,
  num_tokens: int,
  temperature: float,
  seed: int,
  top_k: int = 0,
  top_p: float = 1.0,
  stop: str = END_OF_TEXT,
) -> list[str]:
  """Returns one continuation of each prompt, each cut where it stops.

  Args:
    model: the decoder.
    params: its parameters.
    tokenizer: of the data that it was trained on.
    prompts: how the texts begin; may be empty, every document starts with the end of text.
    num_tokens: length of a continuation.
    temperature: of the sampling; 0 takes the most probable token.
    seed: of the random numbers.
    top_k: samples among the k most probable tokens; 0: all.
    top_p: samples among the most probable tokens that sum to p; 1: all.
    stop: text of one token at which a continuation ends; it always ends at the end of text.

  Raises:
    ValueError: the longest prompt and its continuation do not fit into a row, `stop` is not one
      token, or another option is out of range.
  """
  encoded = tokenizer.encode_batch(prompts)
  lengths = np.array([1 + len(tokens) for tokens in encoded])
  rows = np.full((len(prompts), lengths.max()), tokenizer.eot_id, np.int32)
  for row, tokens in zip(rows, encoded, strict=True):
    row[len(row) - len(tokens) :] = tokens
  stops = (*tokenizer.end_ids, _stop_token(tokenizer, stop))

  def run(params, rows, lengths, key):
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "stop": stops}
    return generate(model.bind(params), rows, num_tokens, lengths=lengths, key=key, **options)

  sample = jax.jit(run, out_shardings=model.layout.everywhere)  # so that each process can read it
  sampled = np.asarray(sample(params, rows, lengths, jax.random.key(seed)))
  return [tokenizer.decode(_until(row, stops)) for row in sampled[:, rows.shape[1] :]]


def _stop_token(tokenizer: Tokenizer, text: str) -> int:
  if text == END_OF_TEXT:
    return tokenizer.eot_id
  tokens = tokenizer.encode_batch([text])[0]
  if len(tokens) != 1:
    raise ValueError(
      f"stop={text!r} is {len(tokens)} tokens; it must be one, or {END_OF_TEXT} for the end of text"
    )
  return int(tokens[0])


def _until(row: np.ndarray, stops: tuple[int, ...]) -> np.ndarray:
  ends = np.flatnonzero(np.isin(row, stops))
  return row[: ends[0]] if len(ends) else row
