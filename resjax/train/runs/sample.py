"""Samples text from a model."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx

from resjax.base import Array, PyTree
from resjax.data import END_OF_TEXT, spelled, start_token, stop_tokens, text_behind
from resjax.models import generate
from resjax.study import TrainedModel


def sample_text(
  model: TrainedModel,
  prompts: Sequence[str],
  *,
  num_tokens: int,
  temperature: float,
  seed: int,
  top_k: int = 0,
  top_p: float = 1.0,
  stop: str = END_OF_TEXT,
) -> list[str]:
  """Returns a continuation of each prompt behind `model.prefix`, up to where it stops.

  A row has one token at least: `start_token` where prefix and prompt are empty.

  Args:
    model: the model.
    prompts: the beginnings of the texts, which may be empty.
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
  tokenizer = model.tokenizer
  encoded = tokenizer.encode_batch(prompts)
  given = [[*model.prefix, *map(int, tokens)] or [start_token(tokenizer)] for tokens in encoded]
  lengths = np.array(list(map(len, given)))
  rows = np.full((len(prompts), lengths.max()), tokenizer.eot_id, np.int32)
  for row, tokens in zip(rows, given, strict=True):
    row[len(row) - len(tokens) :] = tokens
  stops = (*tokenizer.end_ids, *stop_tokens(tokenizer, stop))

  continued = functools.partial(
    generate, num_tokens=num_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stops
  )

  graphdef, state = nnx.split(model.decoder)

  def run(state: PyTree, rows: Array, lengths: Array, key: Array) -> Array:
    return continued(nnx.merge(graphdef, state), rows, lengths=lengths, key=key)

  everywhere = model.decoder.layout.everywhere  # every process can read the result
  sample = jax.jit(run, out_shardings=everywhere)
  sampled = np.asarray(sample(state, rows, lengths, jax.random.key(seed)))
  return [
    text_behind(tokenizer.decode, before.tolist(), _until(row, stops))
    for before, row in zip(encoded, sampled[:, rows.shape[1] :], strict=True)
  ]


def prefix_of_prompts(model: TrainedModel, prompts: Sequence[str]) -> str:
  """Returns a line about what stands in front of prompts, or in place of empty ones."""
  if model.prefix or all(prompts):
    return model.prefix_in_words
  start = spelled(model.tokenizer, (start_token(model.tokenizer),))
  return f"{model.prefix_in_words}; {start} in place of an empty one"


def _until(row: np.ndarray, stops: tuple[int, ...]) -> list[int]:
  ends = np.flatnonzero(np.isin(row, stops))
  return (row[: ends[0]] if len(ends) else row).tolist()
