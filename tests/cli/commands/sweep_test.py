"""The sweep command, as its users run it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_flags

from configs import tiny
from configs.ablations import cut_layer
from resjax.study.sweeps.runs import expand
from resjax.train import experiment
from tests.data.conftest import make_texts, write_folder
from tests.helpers import forks, xla
from tests.helpers.runs import command, write_text

ROOT = Path(__file__).parents[2]
CUT_LAYER = "--config=configs/ablations/cut_layer.py"
SWEEP = '''
"""A sweep in which the second run fails when it starts, and the last one cannot be built."""
from configs import tiny

def get_config():
  c = tiny.get_config()
  c.workdir, c.data.root = {workdir!r}, {root!r}
  c.model.update(num_layers=2, d_model=16, num_heads=2, num_kv_heads=1, mlp_dim=32)
  c.model.residual.name = "standard"
  c.data.seq_len = 16
  c.data.tokenizer.name = "byte"
  c.data.corpora.stdlib.source = {source!r}
  c.optim.warmup_steps = 1
  c.train.update(steps=2, batch_size=8, eval_rows=8, sample_tokens=0)
  return c

def sweep(config):
  yield "good", {{}}
  yield "bad", {{"data.corpora.stdlib.source": "no-such-folder"}}
  yield "later", {{"seed": 1}}
  yield "impossible", {{"model.num_heads": 3}}
'''


@pytest.fixture
def sweep_file(tmp_path):
  source = write_folder(tmp_path / "text", make_texts(200))
  places = {"workdir": tmp_path / "out", "root": tmp_path / "data", "source": source}
  path = tmp_path / "three.py"
  path.write_text(SWEEP.format(**{name: str(place) for name, place in places.items()}))
  return path


@pytest.fixture(scope="module")
def forked():
  return forks.command("sweep", COLUMNS=80)


def _command(*arguments):
  return [sys.executable, "-m", "resjax", "sweep", *map(str, arguments)]


def _environment():
  one_device = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla.QUICK, "COLUMNS": "80"}
  return os.environ | one_device | {"PYTHONPATH": str(ROOT)}


def _run(*arguments):
  options = {"capture_output": True, "text": True, "cwd": ROOT, "env": _environment()}
  return subprocess.run(_command(*arguments), **options)


def _assert_mistake(outcome, *parts):
  code, output = outcome
  assert code == 1
  assert output.startswith("error: ") and output.count("\n") == 1
  assert all(part in output for part in parts), output


def _results(folder):
  found = json.loads((folder / "results.json").read_text())["runs"]
  return {run["name"]: run for run in found}


def test_a_shipped_sweep_by_its_name(forked, tmp_path):
  words = ("--print_commands", "--only=standard", f"--config.workdir={tmp_path}")
  code, output = forked("--config=ablations/compare", *words)
  assert code == 0 and f"--config.workdir={tmp_path}/standard" in output, output


@pytest.mark.slow
def test_a_failing_run_does_not_end_the_sweep(sweep_file, tmp_path, forked):
  first = _run(f"--config={sweep_file}", "--only=bad,impossible,good")
  assert first.returncode == 1
  results = _results(tmp_path / "out")
  assert [run["status"] for run in results.values()] == ["done", "failed", "not run", "failed"]
  assert "config.data.corpora.stdlib.source" in results["bad"]["error"]
  assert "no-such-folder" in first.stdout and "Traceback" not in first.stderr
  assert "not run" not in first.stdout  # `later`, which is not chosen
  assert "num_heads=3" in results["impossible"]["error"] and "num_heads=3" in first.stdout
  assert results["good"]["state_bytes_per_token"] == 16 * 4
  # V D, and per layer 4 projections (2 of them half as wide), 3 MLP matrices, 2 norms; a last norm.
  assert results["good"]["num_parameters"] == 257 * 16 + 2 * (3 * 256 + 3 * 512 + 2 * 16) + 16
  assert (tmp_path / "out" / "sweep.png").exists()

  record = (tmp_path / "out" / "good" / "run.json").stat()
  code, output = forked(f"--config={sweep_file}", "--only=good")
  assert code == 0 and "run 1 of 1: good is done" in output
  assert (tmp_path / "out" / "good" / "run.json").stat() == record  # not started again

  other = forked(f"--config={sweep_file}", "--collect", "--config.optim.learning_rate=1")
  wanted = f"config.optim.learning_rate={tiny.get_config().optim.learning_rate}, not 1.0"
  _assert_mistake(other, "run 'good'", wanted)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_stops_the_run_too_and_the_sweep_goes_on(sweep_file, tmp_path, number, code):
  settings = [f"--config={sweep_file}", "--config.train.log_every=1", "--only=later"]
  long = "--config.train.steps=1000000"
  metrics = tmp_path / "out" / "later" / "metrics.jsonl"
  options = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
  process = subprocess.Popen(
    _command(*settings, long), cwd=ROOT, env=_environment(), start_new_session=True, **options
  )
  deadline = time.monotonic() + 300
  while not (metrics.exists() and "train/loss" in metrics.read_text()):
    assert time.monotonic() < deadline and process.poll() is None
    time.sleep(0.05)
  process.send_signal(number)  # the sweep alone, which hands it on
  _, errors = process.communicate(timeout=300)
  assert process.returncode == code, errors
  log = metrics.read_text()
  assert "stopped in run later; the same command goes on" in errors.splitlines()[-1]
  collected = _run(*settings, long, "--collect")
  assert collected.returncode == 0
  assert _results(tmp_path / "out")["later"]["status"] == "partial"
  assert metrics.read_text() == log  # the run has ended


def test_printed_commands_are_the_runs(forked):
  mine = [
    "--config.train.steps=5000",
    "--config.data.root=my folder",
    "--config.workdir=else where",
  ]
  printing = "--print_commands", "--only=standard,cut-layer5-alpha0.25"
  code, output = forked(CUT_LAYER, *mine, *printing)
  assert code == 0
  config = cut_layer.get_config()
  config.update_from_flattened_dict(
    {"train.steps": 5000, "data.root": "my folder", "workdir": "else where"}
  )
  wanted = {run.name: run.config for run in expand(config, cut_layer.sweep(config))}
  lines = [shlex.split(line) for line in output.splitlines()]
  assert len(lines) == 2
  for line, name in zip(lines, ("standard", "cut-layer5-alpha0.25"), strict=True):
    assert line[:2] == ["resjax", "train"]
    assert experiment.build(_parsed(line[1:])).resolved == experiment.build(wanted[name]).resolved


def _parsed(argv):
  """The config that resjax train makes of its command line."""
  values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", lock_config=True, flag_values=values, sys_argv=argv)
  values(argv)
  return values.config.to_dict()


def test_mistakes_are_one_line(sweep_file, forked):
  typo = sweep_file.with_name("typo.py")
  typo.write_text(sweep_file.read_text().replace('"seed"', '"sed"'))
  _assert_mistake(forked(f"--config={typo}"), "run 'later'", "'sed'", "did you mean 'seed'?")
  failing = sweep_file.with_name("failing.py")
  failing.write_text("from configs.tiny import get_config\ndef sweep(config):\n  {}['k']\n")
  _assert_mistake(forked(f"--config={failing}"), f"{failing}:3: KeyError: 'k'; traceback in ")
  failing.write_text(failing.read_text().replace("{}['k']", "raise ValueError('bad')"))
  _assert_mistake(forked(f"--config={failing}"), f"{failing}:3: bad")
  _assert_mistake(forked(CUT_LAYER, "--only=standart"), "--only=standart", "standard")
  _assert_mistake(forked("--config=configs/tiny.py"), "configs/tiny.py", "sweep(config)")
  both = forked(CUT_LAYER, "--collect", "--print_commands")
  _assert_mistake(both, "--collect", "--print_commands")
  impossible = forked(CUT_LAYER, "--config.model.num_heads=3")
  _assert_mistake(impossible, "run 'standard'", "num_heads=3")


def test_every_arm_is_printed_with_every_seed_and_the_plan_is_written(forked, tmp_path):
  mine = [f"--config.workdir={tmp_path / 'out'}", "--only=standard,gate-token"]
  code, output = forked(CUT_LAYER, *mine, "--seeds=3,0", "--print_commands", "--spread=0.01")
  assert code == 0, output
  lines = [shlex.split(line) for line in output.splitlines() if line.startswith("resjax ")]
  settings = [dict(word.split("=", 1) for word in line[2:]) for line in lines]
  assert [s["--config.seed"] for s in settings] == ["3", "3", "0", "0"]
  names = [Path(s["--config.workdir"]).relative_to(tmp_path / "out") for s in settings]
  arms = "standard", "gate-token"
  assert names == [Path(arm) / f"seed_{seed}" for seed in (3, 0) for arm in arms]
  plan = json.loads((tmp_path / "out" / "plan.json").read_text())
  assert plan["questions"]["seeds"] == [3, 0] and len(plan["arms"]) == 23
  assert len(plan["questions"]["contrasts"]) == 22
  assert "smallest difference that can be seen" in output
  _assert_mistake(forked(CUT_LAYER, *mine, "--collect"), "plan.json has seeds", "--seeds=3,0")


PLANNED = """
PLAN = {
  "baseline": "other", "seeds": (0, 1), "margin": 0.5, "spread": 0.1,
  "tuning": {"settings": {"optim.learning_rate": (0.5, 1, 2)}, "steps": 2, "seed": 9},
}

def sweep(config):
  yield "standard", {}
  yield "other", {"model.residual.name": "x0_residual"}
"""


@pytest.fixture
def planned(sweep_file):
  path = sweep_file.with_name("planned.py")
  path.write_text(sweep_file.read_text().partition("def sweep")[0] + PLANNED)
  return path


def test_mistakes_about_seeds_are_one_line(planned, forked, tmp_path):
  file = f"--config={planned}"
  _assert_mistake(forked(file, "--seeds=0,a"), "--seeds=0,a", "'a'")
  _assert_mistake(forked(file, "--seeds=1,1"), "seeds 1, 1")
  _assert_mistake(forked(file, "--spread=nan"), "--spread=nan must be a finite number")
  _assert_mistake(forked(file, "--seeds=9"), "seed 9", "PLAN.tuning")
  _assert_mistake(forked(file, "--baseline=standart"), "--baseline", "did you mean 'standard'?")
  planned.write_text(planned.read_text().replace('"seeds": (0, 1), ', ""))
  _assert_mistake(forked(file), "planned.py", "PLAN has no seeds")
  planned.write_text(planned.read_text().replace('"margin"', '"margins"'))
  _assert_mistake(forked(file, "--seeds=0"), "planned.py", "did you mean 'margin'?")
  _, output = forked(file, "--config.seed=1", "--together=0")
  assert output.startswith("error: flag --together=0: 0 is not a positive integer")
  assert not (tmp_path / "out").exists()
  own = planned.with_name("three.py")
  _assert_mistake(forked(f"--config={own}", "--seeds=0"), "run 'later' sets seed", "--seeds")


@pytest.mark.slow
def test_tuning_is_printed_first(planned, forked):
  code, output = forked(f"--config={planned}", "--print_commands")
  assert code == 0 and "these runs tune the arms" in output
  lines = [shlex.split(line) for line in output.splitlines() if line.startswith("resjax ")]
  rates = [word for line in lines for word in line if "optim.learning_rate" in word]
  assert len(rates) == len(lines) == 6 and len(set(rates)) == 3
  assert all("--config.seed=9" in line and "--config.train.steps=2" in line for line in lines)


@pytest.mark.release
def test_a_planned_sweep_tunes_runs_and_compares(planned, tmp_path):
  settings = [f"--config={planned}", "--config.train.steps=4", "--config.train.log_every=2"]
  settings += ["--config.optim.learning_rate=0.1"]
  done = _run(*settings, "--alone")
  assert done.returncode == 0, done.stderr
  out = tmp_path / "out"
  plan = json.loads((out / "plan.json").read_text())
  assert list(plan["arms"]) == list(plan["tuned"]) == ["other", "standard"]
  content = json.loads((out / "results.json").read_text())
  assert content["reference"] == "other"
  found = content["comparison"]
  (row,) = found["planned"]
  assert row["contrast"] == {"arm": "standard", "reference": "other"}
  assert row["difference"]["freedom"] == 1 and row["difference"]["seeds"] == [0, 1]
  assert row["memory_ratio"] < 1 and row["flops_ratio"] < 1 and row["speed_ratio"] > 0
  assert not found["deviations"] and not found["exploratory"]
  rates = {run["name"]: run["overrides"]["optim.learning_rate"] for run in content["runs"]}
  assert rates["other/seed_1"] == plan["tuned"]["other"]["optim.learning_rate"]
  for name in ("sweep.png", "differences.png", "curves.png", "results.csv"):
    assert (out / name).stat().st_size > 200

  again = _run(*settings, "--seeds=0,1,2", "--collect")
  assert again.returncode == 0, again.stderr
  assert "exploratory: plan: seeds was [0, 1] and is [0, 1, 2]" in again.stdout
  assert "deviation: standard: seed 2 missing" in again.stdout
  assert len(json.loads((out / "results.json").read_text())["runs"]) == 6


NASTY = "$a_{$ [/x] :fire: 'q' \"r\" $(id) `id` ü*"


@pytest.mark.release
def test_a_folder_of_any_name_goes_through_training_report_and_table(tmp_path):
  root = write_text(tmp_path)
  folder = tmp_path / NASTY
  config = tmp_path / "sweep.py"
  config.write_text(
    "from configs.tiny import get_config\n"
    "def sweep(config):\n  yield 'one', {}\n  yield 'two', {'model.residual.name': 'standard'}\n"
  )
  settings = {
    "model.num_layers": 2,
    "train.steps": 2,
    "train.alignment_every": 1,
    "optim.warmup_steps": 1,
  }
  flags = command(root, folder, *(f"--config.{key}={value}" for key, value in settings.items()))[4:]
  done = _run(f"--config={config}", *flags)
  assert done.returncode == 0, done.stderr
  assert f"{folder}/sweep.png" in done.stdout and f"plot        {folder}/one/plots" in done.stdout
  assert (folder / "sweep.png").stat().st_size > 5000
  analyze = [sys.executable, "-m", "resjax", "analyze", f"--checkpoint={folder / 'one'}"]
  out = folder / "\udcff"  # a byte that is no UTF-8
  more = [f"--data={root / 'text'}", "--tokens=64", f"--out={out}"]
  options = {"capture_output": True, "text": True, "cwd": ROOT, "env": _environment()}
  done = subprocess.run([*analyze, *more], **options)
  assert done.returncode == 0, done.stderr
  assert (out / "report.html").stat().st_size > 5000


@pytest.mark.slow
def test_alike_runs_train_together(sweep_file, forked):
  text = sweep_file.read_text().replace('{"seed": 1}', '{"seed": 1, "optim.learning_rate": 1e-3}')
  sweep_file.write_text(text)
  code, output = forked(f"--config={sweep_file}", "--together=4", "--print_commands")
  assert code == 0
  first, *others = [shlex.split(line) for line in output.splitlines()]
  assert first[:2] == ["resjax", "train_together"]
  runs = [word for word in first if word.startswith("--run=")]
  assert [word.split()[0].rsplit("/", 1)[-1] for word in runs] == ["good", "later"]
  assert "seed=1" in runs[1] and "optim.learning_rate=0.001" in runs[1]
  assert [words[1] for words in others] == ["train"] * len(others)
  mistake = forked(f"--config={sweep_file}", "--together=4", "--print_commands", "--only=good,bad")
  _assert_mistake(mistake, "--together=4", "config.data.corpora.stdlib.source", "optim.learning")


@pytest.mark.slow
def test_one_run_of_each_arm_with_a_seed_is_no_mistake(planned, forked):
  """As when the grids of all arms move by one value."""
  planned.write_text(re.sub('  "tuning": .*', "", planned.read_text()))
  code, output = forked(f"--config={planned}", "--seeds=3", "--together=4", "--print_commands")
  assert code == 0, output
  lines = [shlex.split(line) for line in output.splitlines() if line.startswith("resjax ")]
  assert [line[1] for line in lines] == ["train", "train"]


@pytest.mark.release
def test_a_group_ends_in_the_table_of_the_sweep(sweep_file):
  only = (f"--config={sweep_file}", "--together=2", "--only=good,later")
  done = _run(*only)
  assert done.returncode == 0, done.stdout + done.stderr
  assert "run 1 of 1: good, later" in done.stdout
  rows = json.loads((sweep_file.parent / "out" / "results.json").read_text())
  found = rows["runs"] if isinstance(rows, dict) else rows
  assert {row["name"]: row["status"] for row in found if row["status"] == "done"} == {
    "good": "done", "later": "done"
  }  # fmt: skip
  assert "run 1 of 1: good, later is done" in _run(*only).stdout
