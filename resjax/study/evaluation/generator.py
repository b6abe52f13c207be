"""Continuations of many prompts of any length, by few compiled programs."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from resjax.base import Array, PyTree
from resjax.models import Decoder, generate
from resjax.study.evaluation.buckets import batches, coarse_sizes, fitting


class Generator:
  """Continues prompts, with one compiled program for each bucket of lengths and set of options.

  In several processes all of them call `generate` with the same prompts, and get the same result.

  Args:
    model: any decoder, sharded or not.
    max_length: the most tokens of a prompt and its continuation together.
    batch_size: the number of rows that run at a time; it is raised to a multiple of what the
      devices share.

  Attributes:
    programs: the buckets and options that have been run, each of which was compiled once.

  Raises:
    ValueError: the model's rows are too short for the tokens.
  """

  def __init__(self, model: Decoder, *, max_length: int, batch_size: int = 8):
    self.layout = model.layout
    if max_length > model.config.max_positions:
      raise ValueError(
        f"max_length={max_length} is more than the {model.config.max_positions} positions of the "
        "model; set it to at most that"
      )
    shards = self.layout.num_shards("batch")
    self.max_length, self.batch_size = max_length, -(-batch_size // shards) * shards
    self.programs: set[tuple[Any, ...]] = set()
    graphdef, self._state = nnx.split(model)

    def run(
      state: PyTree,
      rows: Array,
      lengths: Array,
      key: Array,
      options: tuple[tuple[str, Any], ...],
    ) -> Array:
      return generate(nnx.merge(graphdef, state), rows, lengths=lengths, key=key, **dict(options))

    self._run = jax.jit(run, static_argnums=4, out_shardings=self.layout.everywhere)

  def generate(
    self,
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    stop: Sequence[int] = (),
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
  ) -> list[list[int]]:
    """Returns the continuation of each prompt, up to its first stop token, which is included.

    Args:
      prompts: the tokens of the prompts; of one that is too long the last ones are taken.
      num_tokens: the most tokens of a continuation.
      stop: the tokens that end a continuation.
      temperature: the temperature; 0 takes the most probable token.
      top_k: tokens are sampled among the k most probable ones; 0: among all.
      top_p: tokens are sampled among the most probable ones that sum to p; 1: among all.
      seed: the seed of the random numbers.

    Raises:
      ValueError: no room is left for a prompt, a prompt is empty, or an option is out of range.
    """
    room = self.max_length - num_tokens
    if room < 1:
      raise ValueError(
        f"{num_tokens} new tokens leave no room for a prompt in rows of {self.max_length} tokens; "
        "ask for fewer (max_gen_toks), or set max_length above that"
      )
    if not all(prompts):
      raise ValueError("a prompt is empty; it needs at least one token")
    options = {"num_tokens": num_tokens, "stop": tuple(stop), "temperature": temperature}
    options |= {"top_k": top_k, "top_p": top_p}
    buckets = coarse_sizes(room)
    sizes = [fitting(min(len(prompt), room), buckets) for prompt in prompts]
    found: dict[int, list[int]] = {}
    key, ends = jax.random.key(seed), set(stop)
    for numbers, size in batches(sizes, lambda _: self.batch_size):
      rows, lengths = self._padded([prompts[number][-room:] for number in numbers], size)
      key, own = jax.random.split(key)
      chosen = tuple(options.items())
      self.programs.add((size, chosen))
      results = self._run(self._state, rows, lengths, own, chosen)
      found |= dict(zip(numbers, np.asarray(results)[:, size:].tolist(), strict=False))
    return [_until(found[number], ends) for number in range(len(prompts))]

  def _padded(self, prompts: Sequence[Sequence[int]], size: int) -> tuple[Array, Array]:
    """Returns the rows of a batch, padded on the left, and the lengths of their prompts.

    The batch is filled up with rows of one token.
    """
    rows = np.zeros((self.batch_size, size), np.int32)
    lengths = np.ones(self.batch_size, np.int32)
    for number, prompt in enumerate(prompts):
      rows[number, size - len(prompt) :], lengths[number] = prompt, len(prompt)
    return self.layout.copy(rows), self.layout.copy(lengths)


def _until(tokens: list[int], stop: set[int]) -> list[int]:
  return next((tokens[: n + 1] for n, token in enumerate(tokens) if token in stop), tokens)
