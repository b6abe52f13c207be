"""The runs of sweeps, and their results, tables and files."""

import csv
import io
import json

import numpy as np
import pytest
from rich.console import Console

from configs import tiny
from resjax.study.sweeps import table
from resjax.study.sweeps.results import result
from resjax.study.sweeps.runs import expand

COSTS = {"parameters": 123_456_789, "state_bytes_per_token": 12_345}


def _config():
  config = tiny.get_config()
  config.lock()
  return config


def _records(step, bits_per_byte, speeds=(100.0, 300.0, 200.0)):
  """Returns a first evaluation, speeds, and an evaluation after the last step."""
  return [
    {"step": 0, "validation/loss": 9.0, "validation/bits_per_byte": 8.0},
    *({"step": step, "time/tokens_per_second": speed} for speed in speeds),
    {"step": step, "validation/loss": 2.0, "validation/bits_per_byte": bits_per_byte},
  ]


def _results():
  """Returns a reference, a better run, one that stopped early, and one that failed."""
  names = ("reference", "better", "stopped", "broken")
  runs = expand(_config(), [(name, {"train.steps": 7}) for name in names])
  records = [_records(7, 2.0), _records(7, 1.75), _records(5, 1.9)[:-1], []]
  errors = [None, None, None, "no [memory]"]
  return [
    result(run, record, COSTS, error)
    for run, record, error in zip(runs, records, errors, strict=True)
  ]


def test_expand_applies_overrides_to_copies():
  config = _config()
  first, second = expand(
    config,
    [
      ("cut", {"model.residual.name": "attenuation", "model.residual.attenuation.layers": (3,)}),
      ("rate", {"optim.learning_rate": np.float32(1), "train.steps": np.int64(7)}),
    ],
  )
  assert first.config.model.residual.name == "attenuation"
  assert first.config.model.residual.attenuation.layers == (3,)
  assert first.config.workdir == "runs/tiny/cut"
  assert json.dumps(second.overrides) == '{"optim.learning_rate": 1.0, "train.steps": 7}'
  assert second.config.optim.learning_rate == 1.0 and second.config.workdir == "runs/tiny/rate"
  assert second.config.model.residual.name == "block_attn_res"
  assert config.to_json() == tiny.get_config().to_json()


@pytest.mark.parametrize(
  ("runs", "message"),
  [
    ([("a", {"optim.learning_rat": 1.0})], "run 'a': 'optim.learning_rat' is not a setting; did "),
    ([("a", {"model.residual.name.x": 1})], "is not a setting"),
    ([("a", {"model.residual.gat.kappa": 1.0})], "run 'a': .*residual.gat is not .* mean 'gate'"),
    ([("a", {"model.residual.gate.kapa": 1.0})], "'model.residual.gate.kapa' is not .*gate.kappa"),
    ([("a", {"model.residual.gate.kappa": "x"})], "run 'a': .*kappa"),
    ([("a", {"model": {}})], "run 'a': 'model' is not a setting"),
    ([("a", {"train.steps": "many"})], "run 'a': .*steps"),
    ([("a", {}), ("a", {"seed": 1})], "two runs named 'a'"),
    ([("a/b", {})], "run 'a/b'"),
    ([("..", {})], r"run '\.\.'"),
    ([], "no runs"),
  ],
)
def test_expand_is_strict(runs, message):
  with pytest.raises(ValueError, match=message) as caught:
    expand(_config(), runs)
  assert "\n" not in str(caught.value)


def test_status_and_values():
  reference, better, stopped, broken = _results()
  assert (reference.status, reference.step, reference.loss) == ("done", 7, 2.0)
  assert reference.tokens_per_second == 200.0  # This is the median.
  assert better.delta(reference) == -0.25
  assert (stopped.status, stopped.step) == ("partial", 5)
  assert stopped.bits_per_byte is None  # The loss at step 0 says nothing about the run.
  assert stopped.delta(reference) is None and better.delta(stopped) is None
  assert (broken.status, broken.error, broken.step) == ("failed", "no [memory]", 0)
  (run,) = expand(_config(), [("a", {"train.steps": 7})])
  assert result(run, [], {}).status == "not run"
  assert result(run, _records(7, None), {}).status == "diverged"
  assert result(run, _records(6, 2.0), {}).status == "partial"
  ended = [*_records(6, 2.0), {"step": 6, "train/ended_by_guard": True}]
  assert result(run, ended, {}).status == "diverged"


def test_what_runs_of_one_program_share_is_no_cost_of_one():
  (run,) = expand(_config(), [("a", {"train.steps": 7})])
  shared = {"time/tokens_per_second": 9.0, "memory/step_bytes": 99}
  records = _records(7, 2.0)
  alone = result(run, [{"step": 1, **shared, "time/runs": 1}, *records], {})
  assert alone.step_bytes == 99 and alone.tokens_per_second < 200
  found = result(run, [{"step": 1, **shared, "time/runs": 3}, *records], {})
  assert found.step_bytes is None and found.tokens_per_second == 200


def test_no_delta_between_runs_of_different_length():
  short, long = (
    result(run, _records(run.config.train.steps, 2.0), {})
    for run in expand(_config(), [("a", {"train.steps": 7}), ("b", {"train.steps": 8})])
  )
  assert short.status == long.status == "done" and long.delta(short) is None


def test_table_fits_a_narrow_terminal():
  stream = io.StringIO()
  console = Console(file=stream, width=80)
  table.show(_results(), console)
  table.show_errors(_results(), console)
  lines = stream.getvalue().splitlines()
  rows = {line.split()[0]: line.split() for line in lines if line.strip()}
  better = ["123.457M", "2.000", "1.7500", "-0.2500", "200", "12345", "7", "done"]
  assert rows["better"][1:] == better
  assert rows["stopped"][1:] == ["123.457M", "200", "12345", "5", "partial"]
  assert "broken failed: no [memory]" in lines  # Brackets are not taken for markup.


def test_table_has_systems_by_family():
  names = ("standard", "mhc", "gate", "rezero", "unknown")
  runs = expand(_config(), [(name, {"model.residual.name": name}) for name in names])
  stream = io.StringIO()
  table.show([result(run, [], {}) for run in runs], Console(file=stream, width=80))
  words = [line.split()[0] for line in stream.getvalue().splitlines() if line.split()]
  rows = "scalars standard rezero gates gate streams mhc others unknown"
  assert [word for word in words if word in rows.split()] == rows.split()


def test_files_hold_the_table(tmp_path):
  as_json, as_csv = table.save(_results(), tmp_path / "new")
  found = json.loads(as_json.read_text())
  assert found["reference"] == "reference"
  assert [run["status"] for run in found["runs"]] == ["done", "done", "partial", "failed"]
  assert found["runs"][1]["delta_bits_per_byte"] == -0.25
  assert found["runs"][0]["overrides"] == {"train.steps": 7}
  with as_csv.open(newline="") as file:
    rows = list(csv.DictReader(file))
  assert [row["name"] for row in rows] == ["reference", "better", "stopped", "broken"]
  assert float(rows[1]["delta_bits_per_byte"]) == -0.25 and rows[2]["bits_per_byte"] == ""
  assert json.loads(rows[0]["overrides"]) == {"train.steps": 7}
