"""The alignment of a run in progress: where its model switches from input to next token."""

from collections.abc import Callable

import jax
import numpy as np

from resjax.analysis.alignment import Alignment
from resjax.analysis.groups import next_counts
from resjax.analysis.summary import Totals
from resjax.data.pipeline import evaluation_batches
from resjax.data.summary import DatasetSummary
from resjax.processes.signals import StopRequest
from resjax.records.time_ledger import Ledger
from resjax.sharding import Layout
from resjax.train.config import Run
from resjax.train.program import PROBED, Program
from resjax.train.step import ALIGNMENT_PROBES
from resjax.typing import PyTree

SPLIT = "validation"
_NUM_BOOTSTRAP, _LEVEL, _SEED = 1000, 0.95, 0


class AlignmentMeter:
  """Measures on the same few rows of the validation split whenever it is asked to.

  All processes hold all of these rows.

  Args:
    run: what is trained.
    program: of the run.
    dataset: the built data.
    layout: where batches lie.
    ledger: is given the time of each batch.
  """

  def __init__(
    self, run: Run, program: Program, dataset: DatasetSummary, layout: Layout, ledger: Ledger
  ):
    self._program, self._layout, self._ledger = program, layout, ledger
    self._names = {"model": run.workdir, "corpus": SPLIT}
    size = program.alignment_batch["inputs"].shape[0]
    rows = evaluation_batches(dataset, SPLIT, batch_size=size, max_rows=run.train.alignment_rows)
    self._batches = [{name: batch[name] for name in PROBED} for batch in rows]
    self._counts = np.zeros(run.decoder.vocab_size, np.int32)
    for batch in self._batches:
      found = next_counts(batch["inputs"], batch["segment_ids"], run.decoder.vocab_size)
      self._counts += np.asarray(found)

  def measure(self, step: Callable, params: PyTree, stop: StopRequest) -> Alignment | None:
    """Returns the alignment; None if the run is to stop first.

    Args:
      step: of `make_alignment_step`, compiled.
      params: of the model.
      stop: is given a tick per batch.
    """
    totals = Totals()
    for number, batch in enumerate(self._batches):
      with self._ledger.phase("eval"):
        where = self._layout.copy(self._counts), self._layout.copy(np.array(number, np.int32))
        totals.add(jax.device_get(step(params, self._layout.split(batch), *where)))
      if stop.tick():
        return None
    options = {"num_bootstrap": _NUM_BOOTSTRAP, "level": _LEVEL, "seed": _SEED}
    combinator = self._program.model.combinator
    return totals.alignment(
      **self._names, config=ALIGNMENT_PROBES, combinator=combinator, **options
    )
