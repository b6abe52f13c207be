"""The alignment of a run in progress: recorded once, what `measure` finds, shown at the end."""

import dataclasses
import re

import numpy as np
import pytest
from rich.console import Console

from configs import base, tiny
from resjax.aot import compile_step
from resjax.base.records.metrics_log import read_metrics
from resjax.data import dataset
from resjax.data.pipeline import evaluation_batches
from resjax.study.analysis.alignment import Estimate
from resjax.study.analysis.alignment_record import METRICS, from_record, to_record
from resjax.study.analysis.measurement import measure
from resjax.study.analysis.report import alignment_table
from resjax.train import experiment, program
from resjax.train.runs import restore
from tests.helpers import trained
from tests.helpers.alignments import alignment
from tests.helpers.runs import write_text

EVERY = 2


@pytest.fixture(scope="module")
def root(tmp_path_factory):
  return write_text(tmp_path_factory.mktemp("alignment"))


def config(root, **train):
  options = {"alignment_every": EVERY, "alignment_rows": 5} | train
  return trained.settings(root, root / "run", "gate", **options)


@pytest.fixture(scope="module")
def run(root):
  """A run that is stopped by its last step and then goes on; what it printed in the end."""
  first = trained.run(config(root, steps=3))
  second = trained.run(config(root, steps=6), draws=True)
  return first, second


def by_step(root):
  records = read_metrics(root / "run" / "metrics.jsonl")
  return [(r["step"], r) for r in records if "alignment/num_rows" in r]


@pytest.mark.slow
def test_every_k_steps_once_and_at_the_ends(run, root):
  # 3 was the last step of the first part.
  assert [step for step, _ in by_step(root)] == [0, 2, 3, 4, 6]


@pytest.mark.slow
def test_it_is_what_measure_finds(run, root):
  saved = restore.find(str(root / "run"), "--checkpoint")
  loaded = experiment.load(str(root / "run"))
  decoder = restore.restore_model(loaded, saved).decoder
  built = dataset.build(loaded.data)
  batches = list(evaluation_batches(built, "validation", batch_size=8, max_rows=5))
  found = measure(decoder, batches, batch_size=8, model="m", corpus="c")
  ours = from_record(by_step(root)[-1][1], "m", "c", "mlp")
  theirs = found.readings["closed"]["all"]
  group = ours.readings["closed"]["all"]
  assert (group.num_tokens, ours.num_rows) == (theirs.num_tokens, 5)
  assert ours.positions == found.positions
  for metric in METRICS:
    np.testing.assert_allclose(group.metrics[metric], theirs.metrics[metric], rtol=1e-4, atol=1e-6)
  # Targets are shuffled in another way: the interval may move, by chance alone.
  assert group.shifts["probability"].num_bootstrap == theirs.shifts["probability"].num_bootstrap


@pytest.mark.slow
def test_the_end_shows_the_trajectory(run, root):
  for output in run:
    assert "what the states decode to" in output
    assert re.search(r"the next\s+token\s+emerges|no\s+shift", output)
    assert "of the validation split" in output
    rows = [line for line in output.splitlines() if "···" in line]
    assert [row.split()[:2] for row in rows[1:]] == [["layer", str(n)] for n in range(3)]
    assert all("*" in row or {"i", "n"} <= set(row.split()[-1]) for row in rows)
  for name in ("alignment", "alignment_steps"):
    path = root / "run" / "plots" / f"{name}.png"
    assert str(path) in run[1]
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 5000


def test_the_training_program_is_the_same_and_off_is_the_default(root):
  prints = []
  for every in (0, EVERY):
    built = experiment.build(config(root, alignment_every=every))
    made = program.build(built)
    prints.append(compile_step.fingerprint(made.lower_train_step(), made.compiler_options))
  assert prints[0] == prints[1]
  assert base.get_config().train.alignment_every == 0 < tiny.get_config().train.alignment_every


def test_a_batch_has_as_many_rows_as_devices_share(root):
  built = experiment.build(config(root, batch_size=64, alignment_rows=9)).with_vocab_size(257)
  assert program.build(built).alignment_batch["inputs"].shape == (16, trained.T)


def test_records_and_back():
  given = alignment(sites=("mlp",))
  group = given.readings["closed"]["all"]
  estimate = Estimate(4, 3, None, 0.97)
  shift = dataclasses.replace(group.shifts["probability"], emergence=estimate)
  group = dataclasses.replace(group, shifts={"probability": shift})
  record = to_record(dataclasses.replace(given, readings={"closed": {"all": group}}))
  assert record["alignment/emergence_layer"] == 3
  assert record["alignment/emergence_upper"] is None
  assert record["alignment/unread_layer"] == shift.unread.index
  assert all(value is None or isinstance(value, int | float) for value in record.values())
  back = from_record({"step": 1, "train/loss": 2.0, **record}, given.model, given.corpus, "mlp")
  kept = {name: group.metrics[name] for name in METRICS}
  readings = {"closed": {"all": dataclasses.replace(group, metrics=kept)}}
  wanted = dataclasses.replace(given, readings=readings)
  np.testing.assert_equal(dataclasses.asdict(back), dataclasses.asdict(wanted))
  assert from_record({"step": 1, "train/loss": 2.0}, "m", "c", "mlp") is None


def test_the_table_fits_eighty_columns(capsys):
  alignment_table.show(alignment(num_layers=12, sites=("mlp",)), Console(width=80))
  lines = capsys.readouterr().out.splitlines()
  assert len([line for line in lines if "···" in line]) == 13 and "…" not in "".join(lines)
  assert max(map(len, lines[:-1])) <= 80
