"""Samples text from a model."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from resjax.data.tokenizer import END_OF_TEXT, Tokenizer
from resjax.models.model_def import ModelDef
from resjax.models.sampling import generate
from resjax.typing import Array, PyTree


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
  """Returns one continuation of each prompt, up to where it stops.

  Args:
    model: the decoder without its parameters.
    params: the parameters.
    tokenizer: the tokenizer of the data that the model was trained on.
    prompts: the beginnings of the texts, which may be empty; every document starts with the token
      of the end of text.
    num_tokens: the largest length of a continuation.
    temperature: the temperature of the sampling; 0 takes the most probable token.
    seed: the seed of the random numbers.
    top_k: tokens are sampled among the k most probable ones; 0: among all.
    top_p: tokens are sampled among the most probable ones that sum to p; 1: among all.
    stop: the text of a token at which a continuation ends, as it always does at the end of text.

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

  continued = functools.partial(
    generate, num_tokens=num_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stops
  )

  def run(params: PyTree, rows: Array, lengths: Array, key: Array) -> Array:
    return continued(model.bind(params), rows, lengths=lengths, key=key)

  sample = jax.jit(run, out_shardings=model.layout.everywhere)  # every process can read the result
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
