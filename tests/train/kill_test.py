"""A process that saves after every step is killed at random moments, and started again."""

import multiprocessing
import pathlib
import signal
import time
import traceback

import numpy as np
import pytest

from resjax.train.checkpoint.reader import saved_steps
from tests.helpers.checkpoints import assert_restores, numbers, opened, small_state

SIZE = 8192  # 3 MB


def save_until_killed(folder: pathlib.Path) -> None:
  """Goes on from what is there; writes down every save before it begins."""
  log = (folder / "log").open("a")

  def note(*words) -> None:
    print(*words, file=log, flush=True)

  try:
    with opened(folder / "checkpoints", every=1) as checkpoints:
      step = checkpoints.latest or 0
      if step:
        assert_restores(checkpoints, step, SIZE)
      note("restored", step, *checkpoints.said)
      while True:
        step += 1
        batches = numbers(10**9)
        batches.set_state({"next_index": step})
        state = small_state(step, size=SIZE)
        checkpoints.wait()  # as `save` does first
        note("saves", step)
        checkpoints.save(step, state, batches)
  except BaseException:
    note("failed", traceback.format_exc())
    raise


@pytest.mark.slow
@pytest.mark.parametrize("kills", [12, pytest.param(50, marks=pytest.mark.release)])
def test_every_restart_goes_on_from_the_last_save_or_the_one_before_it(tmp_path, kills):
  generator = np.random.default_rng(0)
  context = multiprocessing.get_context("forkserver")  # a fresh backend, without the imports
  context.set_forkserver_preload(["tests.helpers.checkpoints"])
  log, begun = tmp_path / "log", 0
  log.touch()
  for _ in range(kills):
    lines = len(log.read_text().splitlines())
    process = context.Process(target=save_until_killed, args=(tmp_path,))
    process.start()
    deadline, saves = time.monotonic() + 120, generator.integers(5)
    while "".join(log.read_text().splitlines()[lines:]).count("saves") < saves:
      assert process.is_alive() and time.monotonic() < deadline, log.read_text()
      time.sleep(0.005)
    time.sleep(generator.uniform(0, 0.2))
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL, log.read_text()
    for line in log.read_text().splitlines()[lines:]:
      word, step, *more = line.split()
      if word == "restored":
        assert int(step) in (begun, begun - 1), log.read_text()
        assert not more, line
      begun = int(step)
  assert begun > kills // 2
  with opened(tmp_path / "checkpoints") as checkpoints:
    last = checkpoints.latest
    assert_restores(checkpoints, last, SIZE)
    checkpoints.save(last + 1, small_state(last + 1, size=SIZE), numbers())
  names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
  assert names == sorted(map(str, (last, last + 1)))
  assert saved_steps(tmp_path / "checkpoints") == [last, last + 1]
