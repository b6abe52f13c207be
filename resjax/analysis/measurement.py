"""Measures how hidden states of a decoder turn from the input token to the next one along depth."""

import functools
from collections.abc import Iterable, Mapping

import jax
import numpy as np
from flax import nnx

from resjax.analysis.alignment import Alignment
from resjax.analysis.groups import frequency_deciles, next_counts
from resjax.analysis.probing import ProbeConfig, probe_batch
from resjax.analysis.summary import Totals
from resjax.models.decoder import Decoder
from resjax.typing import Array

_KEYS = ("inputs", "segment_ids", "positions")


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
) -> Alignment:
  """Returns the figures of a decoder on some text; the same for any sharding and any processes.

  The batches are kept, for they are looked at twice: for the frequencies of tokens, and for the
  figures.

  Args:
    decoder: any, sharded or not.
    batches: rows of this process as `resjax.data.pipeline.evaluation_batches` gives them: dicts
      with `inputs`, `segment_ids` (0: padding) and `positions`, int32 [b, T], all of one shape.
    batch_size: B, rows of a batch over all processes.
    model: name of the model.
    corpus: name of the text.
    config: what is looked at; None: the defaults.
    seed: of shuffled targets and of the bootstrap.
    num_bootstrap: resamples of rows for the confidence interval of the switch.
    level: of that interval.

  Raises:
    ValueError: no token has a next one in its segment.
  """
  meter = Meter(decoder, batches, batch_size=batch_size, corpus=corpus, config=config, seed=seed)
  return meter.measure(decoder, model, num_bootstrap=num_bootstrap, level=level)


class Meter:
  """`measure` for decoders that differ in their arrays alone: what is compiled for one serves all.

  The arguments, and what it raises, are those of `measure`.
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
  ):
    self._config = config = ProbeConfig() if config is None else config
    self._corpus, self._seed = corpus, seed
    self._batches = [{key: np.asarray(batch[key], np.int32) for key in _KEYS} for batch in batches]
    self._place = functools.partial(decoder.layout.put, batch_size=batch_size)
    counts = _count(decoder, map(self._place, self._batches))
    if not counts.sum():
      raise ValueError(
        f"the text of {corpus!r} has no token with a next one in its segment; give a text of at "
        "least two tokens"
      )
    graphdef, _ = nnx.split(decoder)
    self._copy = decoder.layout.copy
    self._table = self._copy(counts), self._copy(frequency_deciles(counts))

    @functools.partial(jax.jit, out_shardings=decoder.layout.everywhere)
    def step(state, batch, table, number):
      key = jax.random.fold_in(jax.random.key(seed), number)
      return probe_batch(nnx.merge(graphdef, state), batch, *table, key, config)

    self._step = step

  def measure(
    self, decoder: Decoder, model: str, *, num_bootstrap: int = 1000, level: float = 0.95
  ) -> Alignment:
    """Returns the figures of a decoder; arguments as in the function `measure`."""
    state, totals = nnx.state(decoder), Totals()
    for number, batch in enumerate(self._batches):
      number = self._copy(np.array(number, np.int32))
      totals.add(jax.device_get(self._step(state, self._place(batch), self._table, number)))
    options = {"num_bootstrap": num_bootstrap, "level": level, "seed": self._seed}
    return totals.alignment(model, self._corpus, self._config, decoder.combinator, **options)


def _count(decoder: Decoder, batches: Iterable[Mapping[str, Array]]) -> np.ndarray:
  count = functools.partial(next_counts, vocab_size=decoder.config.vocab_size)
  count = jax.jit(count, out_shardings=decoder.layout.everywhere)
  total = np.zeros(decoder.config.vocab_size, np.int32)
  for batch in batches:
    total += jax.device_get(count(batch["inputs"], batch["segment_ids"]))
  return total
