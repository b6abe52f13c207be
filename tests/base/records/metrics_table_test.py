"""The metrics of a run as a table: a row for each step, and what is printed of it."""

import json

import pytest

from resjax.base.records.metrics_table import MetricsTable, read_table

RECORDS = [
  *({"step": s, "train/loss": 4 / s, "time/tokens_per_second": 12345.6 * s} for s in range(1, 31)),
  {"step": 30, "validation/loss": 0.25, "goodput/total": 3.5},
  {"step": 40, "train/loss": None, "train/ended_by_guard": True},
]


def test_records_of_a_step_are_one_row():
  table = MetricsTable(RECORDS)
  assert table.num_rows == 31 and {len(column) for column in table.values()} == {31}
  assert table["step"] == [*range(1, 31), 40]
  assert table["train/loss"][29] == 4 / 30 and table["validation/loss"][29] == 0.25
  assert table["validation/loss"][0] is None and table["train/ended_by_guard"][30] is True
  assert table.series("validation/loss") == ([30], [0.25])
  assert len(table.series("train/loss")[0]) == 30
  with pytest.raises(ValueError, match="'loss'; there are step, train/loss"):
    table.series("loss")


def test_it_is_a_dict_of_columns_as_data_frames_take_it():
  pandas = pytest.importorskip("pandas")
  frame = pandas.DataFrame(MetricsTable(RECORDS))
  assert frame.shape == (31, 6) and frame["train/loss"].iloc[1] == 2


def test_the_first_and_the_last_rows_are_printed():
  lines = repr(MetricsTable(RECORDS)).splitlines()
  assert max(map(len, lines)) <= 80 and len(lines) == 3 + 11 + 2
  assert lines[3].split() == ["1", "4.000", "12.3k"] and lines[8].split() == ["…"] * 4
  assert lines[12].split() == ["30", "0.1333", "370.4k", "0.2500"]
  assert "31 steps, 6 columns" in lines[-1] and "goodput" not in "".join(lines)
  bundle = MetricsTable(RECORDS)._repr_mimebundle_([], [])  # what a notebook shows
  assert "370.4k" in bundle["text/html"]


def test_there_may_be_no_file_yet(tmp_path):
  assert read_table(tmp_path / "metrics.jsonl") == {}
  (tmp_path / "metrics.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
  assert read_table(tmp_path / "metrics.jsonl")["step"] == [1]
