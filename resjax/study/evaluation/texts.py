"""Perplexities and bits per byte of models on texts, without a harness.

models = [TrainedModel("mine", decoder, tokenizer, seq_len=1024)]
corpora = corpora.parse(["wikitext=data/wikitext-2-raw-v1", "licences=/usr/share/licenses"])
report = perplexity(models, corpora)
report.figures["mine", "wikitext"]["word_perplexity"].value
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from resjax.data import TextHasher, batched
from resjax.study.evaluation import estimates
from resjax.study.evaluation.conventions import LAST_WORD, STREAM, TOKENS
from resjax.study.evaluation.corpora import Corpus, Text
from resjax.study.evaluation.estimates import BITS_PER_BYTE, COLUMNS, Difference, Estimate, Metric
from resjax.study.evaluation.scorer import Scored, Scorer, Scores
from resjax.study.evaluation.units import Cut, Unit, first_units, units
from resjax.study.trained_model import TrainedModel

BINS = 16  # of the position of a target in its window
_ROWS = 256  # rows of tokens that are in memory before they are scored


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
  """What a model makes of a text.

  Attributes:
    model: the name of the model.
    corpus: the text.
    cut: how it became rows.
    ids: the names of its units.
    table: a row of `estimates.COLUMNS` for each unit, float64.
    by_position: the nats and the number of the targets in each of `BINS` equal parts of the
      positions of a window, float64 [2, BINS].
    merged: the number of units whose context ends inside of the target's first token.
    lossy: the number of documents with text that the tokenizer cannot spell.
    digest: the digest of the documents that were read, or of the tokens that are scored.
  """

  model: str
  corpus: Corpus
  cut: Cut
  ids: Sequence[str]
  table: np.ndarray
  by_position: np.ndarray
  merged: int
  lossy: int
  digest: str

  @property
  def metrics(self) -> Mapping[str, Metric]:
    """The metrics of the convention, the most important one first."""
    kind = self.corpus.rule.kind
    if kind == LAST_WORD:
      return estimates.WORD_METRICS
    return estimates.STREAM_METRICS if kind in (STREAM, TOKENS) else estimates.TEXT_METRICS

  def sums(self, name: str) -> float:
    """Returns the sum of a column over all units."""
    return float(self.table[:, COLUMNS.index(name)].sum())

  def loss_by_position(self) -> list[float | None]:
    """Returns nats per target in each of `BINS` parts of a window; None where there is none."""
    return [float(n / c) if c else None for n, c in self.by_position.T]

  def drawn(self) -> dict[str, tuple[float, np.ndarray | None]]:
    """Returns each metric of all units, and of every resample of them."""
    whole = self.table.sum(axis=0)
    sums = estimates.resampled(self.table, self.corpus.name)
    return {
      name: (float(metric(whole)), None if sums is None else metric(sums))
      for name, metric in self.metrics.items()
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
  """Figures of models on texts.

  Attributes:
    measured: what each model makes of each text.
    figures: for model and text, or group of texts, each metric with its standard error. A group of
      two texts or more has the macro average of bits per byte: each text counts once.
    differences: the same of each model minus the first one, where both have the same units.
  """

  measured: Sequence[Measured]
  figures: Mapping[tuple[str, str], Mapping[str, Estimate]]
  differences: Mapping[tuple[str, str], Mapping[str, Difference]]


def perplexity(
  models: Sequence[TrainedModel],
  corpora: Sequence[Corpus],
  *,
  stride: int | None = None,
  batch_size: int = 8,
  limit: int = 0,
) -> Report:
  """Returns perplexities, bits per byte and accuracies of models on texts.

  Args:
    models: the models, the first of which the others are compared with.
    corpora: the texts, see `resjax.study.evaluation.corpora.parse`.
    stride: S, by how many tokens windows advance; default: `seq_len`, so they are disjoint.
    batch_size: the number of rows of `seq_len` tokens at a time.
    limit: at most this many documents (or windows of streams) of each text are scored; 0: all.

  Raises:
    ValueError: a text or a size does not fit.
  """
  return summarise(
    [
      found
      for model in models
      for found in measure(model, corpora, stride=stride, batch_size=batch_size, limit=limit)
    ]
  )


def measure(
  model: TrainedModel,
  corpora: Sequence[Corpus],
  *,
  stride: int | None = None,
  batch_size: int = 8,
  limit: int = 0,
  progress: Callable[[str, int], None] = lambda name, tokens: None,
) -> Iterator[Measured]:
  """Yields the measurements of a model on each text; see `perplexity`.

  The progress is called with the name of the text and the number of targets that are scored.
  """
  stride = model.seq_len if stride is None else stride
  if not 1 <= stride <= model.seq_len:
    raise ValueError(
      f"--stride={stride} must be in 1..{model.seq_len}, the tokens of a row of {model.name}"
    )
  cut = Cut(model.seq_len, stride, model.context_prefix)
  scorer = Scorer(model.decoder, max_length=model.seq_len, batch_size=batch_size)
  for corpus in corpora:
    yield _measure(model, scorer, corpus, cut, limit, progress)


def _measure(
  model: TrainedModel,
  scorer: Scorer,
  corpus: Corpus,
  cut: Cut,
  limit: int,
  progress: Callable[[str, int], None],
) -> Measured:
  hasher, of_tokens = TextHasher(), hashlib.blake2b(digest_size=16)

  def texts() -> Iterator[Text]:
    found = corpus.texts()
    for text in itertools.islice(found, limit or None) if corpus.rule.kind != STREAM else found:
      hasher.add(text.original)
      yield text

  ids, table, merged, lossy, scored = [], [], 0, 0, 0
  by_position = np.zeros((2, BINS))
  found = first_units(units(corpus, texts(), model.tokenizer, cut), limit)
  for batch in batched(found, lambda unit: len(unit.rows), _ROWS):
    rows = [row for unit in batch for row in unit.rows]
    results = iter(scorer.score(rows))
    for unit in batch:
      scores = list(itertools.islice(results, len(unit.rows)))
      ids.append(unit.id)
      table.append(_count(unit, scores))
      merged += unit.merged
      lossy += unit.lossy
      _add_positions(by_position, unit.rows, scores, cut.max_length)
      if corpus.rule.kind == TOKENS:
        of_tokens.update(np.asarray(unit.rows[0].tokens[unit.rows[0].first :], np.int32).tobytes())
    scored += sum(len(row.tokens) - row.first for row in rows)
    progress(corpus.name, scored)
  if not scored:
    raise ValueError(
      f"--text={corpus.name}={corpus.place} has no token that can be scored; give a longer text"
    )
  return Measured(
    model.name,
    corpus,
    cut,
    ids,
    np.array(table, np.float64),
    by_position,
    merged,
    lossy,
    of_tokens.hexdigest() if corpus.rule.kind == TOKENS else hasher.digest().root,
  )


def _count(unit: Unit, scores: Sequence[Scores]) -> tuple[float, ...]:
  """Returns the values of `estimates.COLUMNS` of a unit; `right` is 1 if all tokens are greedy."""
  nats = -sum(one.log_prob for one in scores)
  tokens = sum(len(one.log_probs) for one in scores)
  right = all(bool(one.greedy.all()) for one in scores)
  return nats, tokens, unit.bytes, unit.words, right, 1


def _add_positions(
  total: np.ndarray, rows: Sequence[Scored], scores: Sequence[Scores], length: int
) -> None:
  for row, one in zip(rows, scores, strict=True):
    positions = np.arange(row.first - 1, len(row.tokens) - 1) * BINS // length
    nats = -one.log_probs.astype(np.float64)
    total[0] += np.bincount(positions, nats, BINS)
    total[1] += np.bincount(positions, minlength=BINS)


def summarise(measured: Sequence[Measured]) -> Report:
  """Returns the figures of all measurements, with macro averages and paired differences."""
  drawn = {(one.model, one.corpus.name): one.drawn() for one in measured}
  ids = {(one.model, one.corpus.name): list(one.ids) for one in measured}
  models = list(dict.fromkeys(one.model for one in measured))
  for model, group in dict.fromkeys((m.model, m.corpus.group) for m in measured if m.corpus.group):
    parts = [m.corpus.name for m in measured if (m.model, m.corpus.group) == (model, group)]
    if len(parts) > 1:
      average = estimates.macro([drawn[model, part][BITS_PER_BYTE] for part in parts])
      drawn[model, group] = {BITS_PER_BYTE: average}
      ids[model, group] = [f"{part}: {name}" for part in parts for name in ids[model, part]]
  first = models[0] if models else ""
  return Report(
    measured,
    {key: {n: estimates.estimate(v) for n, v in found.items()} for key, found in drawn.items()},
    {
      (model, text): {
        name: estimates.difference(value, drawn[first, text][name]) for name, value in found.items()
      }
      for (model, text), found in drawn.items()
      if model != first and ids.get((first, text)) == ids[model, text]
    },
  )
