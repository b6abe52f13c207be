"""What a training run leaves: a model, its metrics, and the paths of its files."""

import dataclasses
import functools
from collections.abc import Sequence

from resjax.base import Location, terminal
from resjax.base.records import METRICS_FILE, MetricsTable, read_table
from resjax.data import Tokenizer
from resjax.models import Decoder
from resjax.study import TrainedModel


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingResult:
  """A run that has reached its last step.

  Attributes:
    step: the number of its last step.
    workdir: its folder.
    checkpoint: the folder of its newest checkpoint.
    plots: its figures, as PNG files; empty in all processes but the first.
    trained: the model with its tokenizer.
  """

  step: int
  workdir: Location
  checkpoint: Location
  plots: Sequence[Location]
  trained: TrainedModel = dataclasses.field(repr=False)

  @property
  def model(self) -> Decoder:
    """The decoder with its parameters."""
    return self.trained.decoder

  @property
  def tokenizer(self) -> Tokenizer:
    """The tokenizer of its data."""
    return self.trained.tokenizer

  @functools.cached_property
  def metrics(self) -> MetricsTable:
    """The metrics of all steps of the run, including steps of earlier processes."""
    return read_table(self.workdir / METRICS_FILE)

  def _repr_html_(self) -> str:
    """Returns the HTML for a notebook: the folder of the run and its plots."""
    return terminal.notebook_html(repr(self), [plot.read_bytes() for plot in self.plots])
