"""The metrics of a run as a table, for notebooks and data frames."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.jupyter import JupyterMixin

from resjax.base import terminal
from resjax.base.records.metrics_log import Scalar, read_metrics
from resjax.base.records.progress import format_number

# The columns that are printed, with shorter headings.
_SHOWN = {
  "step": "step",
  "train/loss": "loss",
  "train/bits_per_byte": "bits/byte",
  "train/learning_rate": "lr",
  "time/tokens_per_second": "tokens/s",
  "validation/loss": "validation\nloss",
  "validation/bits_per_byte": "validation\nbits/byte",
}
_ENDS = 5  # so many rows are printed from the beginning and from the end


class MetricsTable(dict[str, list[Scalar]], JupyterMixin):
  """Columns by name, of one length: `step`, and the metrics; a row for every step with a record.

  It is a dict, so `pandas.DataFrame(table)` and `polars.DataFrame(table, strict=False)` take it as
  it is. Where nothing was measured after a step, a column has None. Printed it shows the first and
  the last rows of the most important columns.

  Args:
    records: dicts of metrics with their step, in the order of the steps, as `read_metrics` returns
      them; records of one step become one row.
  """

  def __init__(self, records: Sequence[Mapping[str, Scalar]]):
    rows: dict[Any, dict[str, Scalar]] = {}
    for record in records:
      rows.setdefault(record["step"], {}).update(record)
    names = dict.fromkeys(name for row in rows.values() for name in row)
    super().__init__({name: [row.get(name) for row in rows.values()] for name in names})

  @property
  def num_rows(self) -> int:
    """The number of steps that have a record."""
    return len(self.get("step", ()))

  def series(self, name: str) -> tuple[list[Scalar], list[Scalar]]:
    """Returns the steps after which a metric was measured, and its values, for `plt.plot(*...)`.

    Raises:
      ValueError: there is no such metric.
    """
    if name not in self:
      raise ValueError(f"no metric is called {name!r}; there are {', '.join(self)}")
    known = [(s, v) for s, v in zip(self["step"], self[name], strict=True) if v is not None]
    return [step for step, _ in known], [value for _, value in known]

  def __rich__(self) -> terminal.Table:
    names = [name for name in _SHOWN if name in self]
    caption = f"{self.num_rows:,} steps, {len(self)} columns"
    table = terminal.Table(numbers=(_SHOWN[name] for name in names), caption=caption)
    for number in _some(self.num_rows):
      row = [None if number is None else self[name][number] for name in names]
      table.add_row(*("…" if number is None else _text(value) for value in row))
    return table

  def __repr__(self) -> str:
    return terminal.text_of(lambda console: console.print(self))


def read_table(path: str | os.PathLike) -> MetricsTable:
  """Returns the table of a `metrics.jsonl`, see `read_metrics`; empty where there is none yet."""
  try:
    return MetricsTable(read_metrics(path))
  except FileNotFoundError:
    return MetricsTable([])


def _some(count: int) -> list[int | None]:
  """Returns the numbers of the rows that are printed, with None where others are left out."""
  if count <= 2 * _ENDS + 1:
    return [*range(count)]
  return [*range(_ENDS), None, *range(count - _ENDS, count)]


def _text(value: Scalar) -> str:
  if value is None:
    return ""
  if isinstance(value, float):
    return format_number(value)
  return f"{value:,}" if isinstance(value, int) else str(value)
