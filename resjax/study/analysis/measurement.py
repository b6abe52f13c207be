"""Measures the alignment of decoders on a text."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.stages import Wrapped

from resjax.base import Array, PyTree
from resjax.base.sharding import Layout
from resjax.models import Decoder
from resjax.study.analysis.alignment import Alignment
from resjax.study.analysis.probing import PROBED, ProbeConfig, ProbeSums, probe_batch
from resjax.study.analysis.token_groups import frequency_deciles, next_counts
from resjax.study.analysis.totals import Totals

_OVER_PRODUCTS = 1.2  # the time of a measurement beside that of its matrix products
Progress = Callable[[int, int], None]
"""A function that is called as progress(done, total)."""
ProbeStep = Callable[..., ProbeSums]
"""The function that `make_probe_step` returns."""


def measure(
  decoder: Decoder,
  batches: Iterable[Mapping[str, np.ndarray]],
  *,
  batch_size: int,
  model: str,
  corpus: str,
  config: ProbeConfig | None = None,
  seed: int = 0,
  num_bootstrap: int = 1000,
  level: float = 0.95,
  progress: Progress = lambda done, total: None,
) -> Alignment:
  """Returns the alignment of a decoder, which is the same for any sharding and any processes.

  The batches are kept in memory, because both the frequencies of tokens and the metrics need them.

  Args:
    decoder: any decoder, sharded or not.
    batches: the rows of this process as `resjax.data.pipeline.evaluation_batches` yields them, of
      which `inputs`, `segment_ids` and `positions` are used, int32 [b, T], all of one shape.
    batch_size: B, the number of rows of a batch over all processes.
    model: the name of the model.
    corpus: the name of the corpus.
    config: what to measure; None uses the defaults.
    seed: the seed of shuffled targets and of the bootstrap.
    num_bootstrap: the number of resamples for the confidence intervals of the shift.
    level: the confidence level of that interval.
    progress: is called after every batch.

  Raises:
    ValueError: No token has a next token in its segment.
  """
  meter = Meter(decoder, batches, batch_size=batch_size, corpus=corpus, config=config, seed=seed)
  return meter.measure(
    nnx.state(decoder), model, num_bootstrap=num_bootstrap, level=level, progress=progress
  )


def expected_seconds(decoder: Decoder, flops: float) -> float:
  """Returns about how long matrix products take, from the time of one with part of the head.

  Args:
    decoder: the decoder, on devices of this process.
    flops: of all products.
  """
  width = decoder.config.d_model
  rows, words = (jnp.ones((size, width), decoder.config.dtype) for size in (512, 8192))
  product = jax.jit(lambda rows, words: jnp.max(rows @ words.T))
  product(rows, words).block_until_ready()
  times = []
  for _ in range(3):
    start = time.perf_counter()
    product(rows, words).block_until_ready()
    times.append(time.perf_counter() - start)
  rate = 2 * 512 * 8192 * width / min(times)
  return _OVER_PRODUCTS * flops / rate / max(1, decoder.layout.mesh.size)


def make_probe_step(
  bind: Callable[[PyTree], Decoder],
  layout: Layout,
  config: ProbeConfig,
  seed: int = 0,
  compiler_options: Mapping[str, str] | None = None,
) -> Wrapped:
  """Returns a jitted function of (state, batch, counts, deciles, number) that gives `ProbeSums`.

  `state` holds the arrays from which `bind` makes a decoder, `number` is the number of the batch,
  and the others are arguments of `probe_batch`. Every process can read the sums.

  Args:
    bind: makes a decoder of its arrays.
    layout: the layout of the decoder.
    config: what to measure.
    seed: the seed of shuffled targets.
    compiler_options: options of the compiler, by name; None: none.
  """
  options = dict(compiler_options or {})

  @functools.partial(jax.jit, out_shardings=layout.everywhere, compiler_options=options)
  def probe_step(
    state: PyTree,
    batch: Mapping[str, Array],
    counts: Array,
    deciles: Array | None,
    number: Array,
  ) -> ProbeSums:
    key = jax.random.fold_in(jax.random.key(seed), number)
    return probe_batch(bind(state), batch, counts, deciles, key, config)

  return probe_step


class Meter:
  """Measures decoders that differ in their arrays alone on one text, all with one program.

  Takes the arguments of `measure`, except for two: `decoder` has the structure of the decoders,
  and its arrays may be abstract; `step` is the result of `make_probe_step` for the same config and
  seed, compiled or not, or None for a step that takes the `nnx.State` of a decoder.

  Raises:
    ValueError: No token has a next token in its segment.
  """

  def __init__(
    self,
    decoder: Decoder,
    batches: Iterable[Mapping[str, np.ndarray]],
    *,
    batch_size: int,
    corpus: str,
    config: ProbeConfig | None = None,
    seed: int = 0,
    step: ProbeStep | None = None,
  ):
    self._config = config = ProbeConfig() if config is None else config
    self._corpus, self._seed, self._combinator = corpus, seed, decoder.combinator
    self._batches = [{key: np.asarray(batch[key], np.int32) for key in PROBED} for batch in batches]
    self._place = functools.partial(decoder.layout.put, batch_size=batch_size)
    counts = _count(decoder, map(self._place, self._batches))
    if not counts.sum():
      raise ValueError(
        f"the text of {corpus!r} has no token with a next one in its segment; give a text of at "
        "least two tokens, in rows of at least two (seq_len)"
      )
    self._copy = decoder.layout.copy
    deciles = self._copy(frequency_deciles(counts)) if config.deciles else None
    self._table = self._copy(counts), deciles
    if step is None:
      merge = functools.partial(nnx.merge, nnx.split(decoder)[0])
      step = make_probe_step(merge, decoder.layout, config, seed)
    self._step = step

  def measure(
    self,
    state: PyTree,
    model: str,
    *,
    num_bootstrap: int = 1000,
    level: float = 0.95,
    progress: Progress = lambda done, total: None,
    around_batch: Callable[[], AbstractContextManager] = contextlib.nullcontext,
  ) -> Alignment:
    """Returns the alignment of a decoder.

    Args:
      state: the arrays of the decoder, in the form that the step takes.
      model: the name of the model.
      num_bootstrap: the number of resamples for the confidence intervals of the shift.
      level: the confidence level of that interval.
      progress: is called as progress(done, total) after every batch.
      around_batch: returns the context in which a batch is measured; an exception of the context
        ends the measurement.
    """
    totals = Totals()
    for number, batch in enumerate(self._batches):
      with around_batch():
        index = self._copy(np.array(number, np.int32))
        totals.add(jax.device_get(self._step(state, self._place(batch), *self._table, index)))
      progress(number + 1, len(self._batches))
    return totals.alignment(
      model,
      self._corpus,
      self._config,
      self._combinator,
      num_bootstrap=num_bootstrap,
      level=level,
      seed=self._seed,
    )


def _count(decoder: Decoder, batches: Iterable[Mapping[str, Array]]) -> np.ndarray:
  """Returns how often each token is a next one in batches that are on their devices, [V]."""
  counts = functools.partial(next_counts, vocab_size=decoder.config.vocab_size)
  count = jax.jit(counts, out_shardings=decoder.layout.everywhere)
  total = np.zeros(decoder.config.vocab_size, np.int32)
  for batch in batches:
    total += jax.device_get(count(batch["inputs"], batch["segment_ids"]))
  return total
