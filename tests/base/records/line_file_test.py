"""Records in an object: written seldom, before every checkpoint, by one process."""

import pytest

from resjax.base import locations
from resjax.base.records.line_file import RemoteLines
from resjax.base.records.metrics_log import MetricLogger, read_metrics


@pytest.fixture
def path(bucket):
  return locations.path(f"gs://{bucket}/run/metrics.jsonl")


def logger(path, resume_step):
  options = {"tensorboard": False, "wandb_project": "", "config": {}}
  return MetricLogger(str(path.parent), resume_step=resume_step, **options)


def test_a_resumed_run_neither_misses_nor_repeats_a_record(path):
  with pytest.raises(KeyboardInterrupt), logger(path, None) as log:
    for step in (1, 2, 3):
      log.log(step, {"loss": step})
    log.flush()  # the checkpoint of step 3
    on_disk = read_metrics(path)
    log.log(4, {"loss": 4})
    raise KeyboardInterrupt
  assert [record["step"] for record in on_disk] == [1, 2, 3]
  with logger(path, 3) as log:
    assert read_metrics(path) == on_disk
    log.log(4, {"loss": 4.5})
  assert read_metrics(path) == [*on_disk, {"step": 4, "loss": 4.5}]


def test_a_killed_process_leaves_what_was_flushed(path):
  log = logger(path, None)
  log.log(1, {"loss": 1})
  log.flush()
  log.log(2, {"loss": 2})  # and is killed
  assert [record["step"] for record in read_metrics(path)] == [1]


def test_uploads_take_a_hundredth_of_the_time(tmp_path, monkeypatch):
  now, uploads = 0.0, []

  def upload(place, text):
    nonlocal now
    now += 2.0  # seconds that an upload takes
    uploads.append((now, text))

  monkeypatch.setattr(locations, "write_text", upload)
  lines = RemoteLines(tmp_path / "metrics.jsonl", ["kept"], clock=lambda: now)
  for number in range(1000):
    now += 1.0
    lines.add(str(number))
  assert len(uploads) == 1 + 1000 // 200
  began = [end - 2.0 for end, _ in uploads]
  assert all(later - end >= 200 for (end, _), later in zip(uploads, began[1:], strict=False))
  lines.close()
  assert uploads[-1][1] == "kept\n" + "".join(f"{number}\n" for number in range(1000))


def test_the_process_that_came_first_notices_the_second(path):
  first = logger(path, None)
  first.log(1, {"loss": 1})
  first.flush()
  second = logger(path, 1)
  first.log(2, {"loss": 2})
  with pytest.raises(ValueError, match=r"another process writes gs://.*/run/metrics.jsonl since"):
    first.flush()
  first.close()
  second.log(2, {"loss": 2.5})
  second.close()
  assert [record["loss"] for record in read_metrics(path)] == [1, 2.5]
