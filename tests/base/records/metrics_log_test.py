import math
import os
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from resjax.base.records import metrics_log


def logger(folder, resume_step=None, **changes):
  settings = {"tensorboard": False, "wandb_project": "", "config": {}, **changes}
  return metrics_log.MetricLogger(folder, resume_step=resume_step, **settings)


def write(folder, steps, resume_step=None, **changes):
  with logger(folder, resume_step, **changes) as log:
    for step in steps:
      log.log(step, {"train/loss": 1.0 / step})


def steps_of(folder):
  return [record["step"] for record in metrics_log.read_metrics(folder / "metrics.jsonl")]


def test_every_kind_of_scalar(tmp_path):
  metrics = {
    "float": 0.5,
    "int": 7,
    "jax": jnp.float32(0.25),
    "bfloat16": jnp.bfloat16(1.5),
    "numpy": np.ones((1, 1), np.float64),
    "text": "[a]\n",
    "none": None,
    "nan": math.nan,
    "inf": jnp.float32(-jnp.inf),
  }
  with logger(tmp_path / "new" / "run") as log:
    log.log(3, metrics)
    # Flushed: another process can read it while the run goes on.
    (record,) = metrics_log.read_metrics(tmp_path / "new" / "run" / "metrics.jsonl")
  values = {"jax": 0.25, "bfloat16": 1.5, "numpy": 1.0, "nan": None, "inf": None}
  assert record == {"step": 3, **metrics, **values}
  assert type(record["int"]) is int


def test_bad_records_leave_no_trace(tmp_path):
  with logger(tmp_path) as log:
    log.log(5, {"a": 1})
    for step, metrics, message in (
      (4, {"a": 1}, "step 4 comes after step 5"),
      (6, {"a": 1, "b": np.zeros(3)}, "metric 'b' must be a scalar"),
      (6, {"a": [object()]}, "metric 'a' must be a scalar"),
      (6, {"step": 1}, "may not be named 'step'"),
    ):
      with pytest.raises(ValueError, match=message):
        log.log(step, metrics)
    log.log(5, {"eval/loss": 2})
  assert metrics_log.read_metrics(tmp_path / "metrics.jsonl") == [
    {"step": 5, "a": 1},
    {"step": 5, "eval/loss": 2},
  ]


@pytest.mark.parametrize("resume_step", [0, 1, 4, 6, 9])
def test_resume_neither_misses_nor_repeats(tmp_path, resume_step):
  write(tmp_path, range(1, 7))
  whole = (tmp_path / "metrics.jsonl").read_bytes()
  write(tmp_path, range(resume_step + 1, 11), resume_step)
  assert steps_of(tmp_path) == [*range(1, min(resume_step, 6) + 1), *range(resume_step + 1, 11)]
  if resume_step >= 6:
    assert (tmp_path / "metrics.jsonl").read_bytes().startswith(whole)
  assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_without_checkpoint_the_record_starts_empty(tmp_path):
  with logger(tmp_path) as log:
    log.log(0, {"eval/loss": 9.0})
  write(tmp_path, [1, 2])
  assert steps_of(tmp_path) == [1, 2]


def test_every_cut_of_the_last_line_is_survived(tmp_path):
  path = tmp_path / "metrics.jsonl"
  with logger(tmp_path) as log:
    log.log(1, {"a": 1})
    log.log(2, {"b": "é"})
  # json.dumps escapes; a foreign writer need not.
  whole = path.read_text().replace("\\u00e9", "é").encode()
  first = whole.index(b"\n") + 1
  for cut in range(first, len(whole)):
    path.write_bytes(whole[:cut])
    complete = cut == len(whole) - 1  # only the line end is missing
    assert steps_of(tmp_path) == ([1, 2] if complete else [1])
    write(tmp_path, [3], resume_step=2)
    assert steps_of(tmp_path) == ([1, 2, 3] if complete else [1, 3])


def test_broken_line_in_the_middle_is_an_error_and_stays(tmp_path):
  path = tmp_path / "metrics.jsonl"
  text = '{"step": 1}\n{"ste\n{"step": 3}\n'
  path.write_text(text)
  with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl is no record"):
    logger(tmp_path, 3)
  assert path.read_text() == text


@pytest.mark.parametrize(
  ("line", "words"),
  [
    ('{"step": -1}', "step is -1: an integer from 0 on is allowed"),
    ('{"step": true}', "step is True: an integer"),
    ('{"step": "3"}', "step is '3': an integer"),
    ('{"loss": 1}', "step is None: an integer"),
    ("[1]", "expected object, got array"),
    ('{"step": 1, "a": [1]}', "a: expected"),
    ('{"step": 1, "validation/loss": "x"}', "validation/loss is 'x': a number is allowed"),
    ('{"step": 1, "a": NaN}', "holds no JSON"),
    ('{"step": 1, "a": "' + "x" * 2**20 + '"}', r"at most 1,048,576 are read"),
  ],
)
def test_what_a_record_cannot_be(tmp_path, line, words):
  (tmp_path / "metrics.jsonl").write_text(f'{{"step": 0}}\n{line}\n{{"step": 3}}\n')
  with pytest.raises(ValueError, match=f"line 2 of .*metrics.jsonl is no record .*{words}"):
    metrics_log.read_metrics(tmp_path / "metrics.jsonl")


def test_crash_while_truncating_leaves_the_old_record(tmp_path, monkeypatch):
  write(tmp_path, [1, 2, 3])
  before = (tmp_path / "metrics.jsonl").read_bytes()

  def full(_):
    raise OSError("no space left on device")

  monkeypatch.setattr(os, "fsync", full)
  with pytest.raises(OSError, match="no space"):
    logger(tmp_path, 1)
  assert (tmp_path / "metrics.jsonl").read_bytes() == before


KILLED = """
import sys
from resjax.base.records import metrics_log
log = metrics_log.MetricLogger(
  sys.argv[1], resume_step=None, tensorboard=False, wandb_project="", config={})
for step in range(1, 10**9):
  log.log(step, {"train/loss": 1.0 / step})
"""


def test_killed_process(tmp_path):
  process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
  path = tmp_path / "metrics.jsonl"
  deadline = time.monotonic() + 60
  while not (path.exists() and path.stat().st_size > 10_000):
    assert time.monotonic() < deadline
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.wait()
  seen = steps_of(tmp_path)
  assert seen == list(range(1, len(seen) + 1))
  write(tmp_path, range(101, 111), resume_step=100)
  assert steps_of(tmp_path) == list(range(1, 111))


def test_other_processes_write_nothing(tmp_path):
  write(tmp_path / "a", [1], enabled=False, tensorboard=True, wandb_project="p")
  assert not (tmp_path / "a").exists()


def test_tensorboard(tmp_path):
  pytest.importorskip("tensorboardX")
  from tensorboardX import proto
  from tensorboardX.record_writer import masked_crc32c

  write(tmp_path, [1, 2], tensorboard=True)
  with logger(tmp_path, 1, tensorboard=True) as log:
    log.log(2, {"train/loss": 0.5, "text": "x", "bad": math.nan})
  scalars, purged = [], []
  for path in (tmp_path / "tensorboard").iterdir():
    data, at = path.read_bytes(), 0
    while at < len(data):
      size = int.from_bytes(data[at : at + 8], "little")
      body = data[at + 12 : at + 12 + size]
      crc = int.from_bytes(data[at + 12 + size : at + 16 + size], "little")
      assert crc == masked_crc32c(body)
      event = proto.event_pb2.Event.FromString(body)
      if event.HasField("session_log"):
        purged.append(event.step)
      scalars += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
      at += size + 16
  assert sorted(scalars) == [(1, "train/loss", 1.0), (2, "train/loss", 0.5), (2, "train/loss", 0.5)]
  assert sorted(purged) == [0, 2]


class FakeWandb:
  """Records calls in place of the wandb package."""

  def __init__(self):
    self.inits, self.logged, self.finished = [], [], 0

  def init(self, **kwargs):
    self.inits.append(kwargs)
    return self

  def log(self, metrics, step):
    self.logged.append((step, metrics))

  def finish(self):
    self.finished += 1


def test_wandb_run_is_continued(tmp_path, monkeypatch):
  fake = FakeWandb()
  monkeypatch.setitem(sys.modules, "wandb", fake)
  write(tmp_path, [1, 2], wandb_project="depth", config={"seed": 3})
  with logger(tmp_path, 2, wandb_project="depth", config={"seed": 3}) as log:
    log.log(3, {"train/loss": 0.25, "bad": math.nan})
  first, second = fake.inits
  assert first == second
  assert (first["project"], first["config"], first["resume"]) == ("depth", {"seed": 3}, "allow")
  assert fake.logged == [
    (1, {"train/loss": 1.0}),
    (2, {"train/loss": 0.5}),
    (3, {"train/loss": 0.25}),
  ]
  assert fake.finished == 2
  write(tmp_path, [1], wandb_project="depth")
  assert fake.inits[-1]["id"] != first["id"]


@pytest.mark.parametrize(
  ("module", "change", "extra"),
  [
    ("tensorboardX", {"tensorboard": True}, r"resjax\[tensorboard\]"),
    ("wandb", {"wandb_project": "p"}, r"resjax\[wandb\]"),
  ],
)
def test_missing_extra_is_named_and_nothing_dropped(tmp_path, monkeypatch, module, change, extra):
  write(tmp_path, [1, 2])
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(ValueError, match=extra):
    logger(tmp_path, 1, **change)
  assert steps_of(tmp_path) == [1, 2]


def test_sinks_are_imported_lazily():
  code = (
    "import sys, resjax.base.records.metrics_log, resjax.base.records.progress;"
    "print([m for m in ('tensorboardX', 'wandb', 'tensorflow') if m in sys.modules])"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  assert done.stdout == "[]\n", done.stderr
