"""Samples text from a model."""

import functools
from collections.abc import Sequence

import jax
import numpy as np

from resjax.data.continuation import stop_tokens, text_behind
from resjax.data.prefix import start_token
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
  prefix: Sequence[int] | None = None,
) -> list[str]:
  """Returns one continuation of each prompt, up to where it stops.

  Args:
    model: the decoder without its parameters.
    params: the parameters.
    tokenizer: the tokenizer of the data that the model was trained on.
    prompts: the beginnings of the texts, which may be empty.
    num_tokens: the largest length of a continuation.
    temperature: the temperature of the sampling; 0 takes the most probable token.
    seed: the seed of the random numbers.
    top_k: tokens are sampled among the k most probable ones; 0: among all.
    top_p: tokens are sampled among the most probable ones that sum to p; 1: among all.
    stop: the text of a token at which a continuation ends, as it always does at the end of text.
    prefix: the tokens in front of each prompt; None: those in front of the documents of training. A
      row has one token at least: `prefix.start_token` where both are empty.

  Raises:
    ValueError: the longest prompt and its continuation do not fit into a row, `stop` is not one
      token, or another option is out of range.
  """
  encoded = tokenizer.encode_batch(prompts)
  front = list(tokenizer.documents.before if prefix is None else prefix)
  given = [[*front, *map(int, tokens)] or [start_token(tokenizer)] for tokens in encoded]
  lengths = np.array(list(map(len, given)))
  rows = np.full((len(prompts), lengths.max()), tokenizer.eot_id, np.int32)
  for row, tokens in zip(rows, given, strict=True):
    row[len(row) - len(tokens) :] = tokens
  stops = (*tokenizer.end_ids, *stop_tokens(tokenizer, stop))

  continued = functools.partial(
    generate, num_tokens=num_tokens, temperature=temperature, top_k=top_k, top_p=top_p, stop=stops
  )

  def run(params: PyTree, rows: Array, lengths: Array, key: Array) -> Array:
    return continued(model.bind(params), rows, lengths=lengths, key=key)

  sample = jax.jit(run, out_shardings=model.layout.everywhere)  # every process can read the result
  sampled = np.asarray(sample(params, rows, lengths, jax.random.key(seed)))
  return [
    text_behind(tokenizer.decode, before.tolist(), _until(row, stops))
    for before, row in zip(encoded, sampled[:, rows.shape[1] :], strict=True)
  ]


def _until(row: np.ndarray, stops: tuple[int, ...]) -> list[int]:
  ends = np.flatnonzero(np.isin(row, stops))
  return (row[: ends[0]] if len(ends) else row).tolist()
