"""A sweep whose folder is in an object store."""

import csv
import io
import json

from configs import base
from resjax.base import locations
from resjax.study.analysis import plots
from resjax.study.sweeps import table
from resjax.study.sweeps.results import result
from resjax.study.sweeps.runs import expand


def test_runs_have_folders_there_and_results_arrive(bucket):
  config = base.get_config()
  config.workdir = f"gs://{bucket}/sweep"
  runs = expand(config, [("a", {}), ("b", {"train.steps": 7})])
  assert [run.config.workdir for run in runs] == [f"gs://{bucket}/sweep/{n}" for n in "ab"]
  record = {"step": 7, "validation/loss": 1.0, "validation/bits_per_byte": 2.5}
  results = [result(run, [record], {"parameters": 3}) for run in runs]
  folder = locations.path(config.workdir)
  as_json, as_csv = table.save(results, folder)
  plots.save(table.figure(results, None, "sweep"), folder / "sweep.png")
  assert [r["name"] for r in json.loads(as_json.read_text())["runs"]] == ["a", "b"]
  rows = list(csv.DictReader(io.StringIO(as_csv.read_text())))
  assert [row["bits_per_byte"] for row in rows] == ["2.5", "2.5"]
  assert (folder / "sweep.png").read_bytes().startswith(b"\x89PNG")
