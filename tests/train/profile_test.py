"""Profiles of chosen steps: the range, the files, and what stands in them."""

import gzip
import re

import jax
import jax.numpy as jnp
import pytest

from resjax.train.profile import ANNOTATION, Profiler, parse_steps


def test_the_range_has_both_ends():
  assert list(parse_steps("10:13", 13)) == [10, 11, 12, 13]
  assert list(parse_steps("1:1", 1)) == [1]
  assert not parse_steps("", 5)


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("ten:13", "'ten:13' must be FIRST:LAST, such as 10:13"),
    ("10", "'10' must be FIRST:LAST"),
    ("10:13:2", "'10:13:2' must be FIRST:LAST"),
    ("-1:3", "'-1:3' must be FIRST:LAST"),
    ("13:10", "13:10 must have 1 <= FIRST <= LAST"),
    ("0:3", "0:3 must have 1 <= FIRST <= LAST"),
    ("10:101", "10:101 ends after config.train.steps=100"),
  ],
)
def test_other_ranges_are_refused(text, words):
  with pytest.raises(ValueError, match=re.escape(f"--profile_steps={words}")):
    parse_steps(text, 100)


def test_steps_that_are_over_are_refused(tmp_path):
  with pytest.raises(ValueError, match="--profile_steps=10:13 begins before step 11"):
    Profiler(range(10, 14), tmp_path, start=10)
  Profiler(range(10, 14), tmp_path, start=9)
  Profiler(range(0), tmp_path, start=9)


def run(profiler, steps):
  work = jax.jit(lambda x: x @ x)
  x = jnp.eye(64)
  with profiler:
    for step in steps:
      with profiler.step(step):
        x = work(x)
      profiler.end(step, x)


def annotated_steps(folder):
  """Numbers of the annotated steps, from the one trace in a folder."""
  (path,) = folder.rglob("*.xplane.pb")
  assert ANNOTATION.encode() in path.read_bytes()
  profile = jax.profiler.ProfileData.from_file(str(path))
  return {
    dict(event.stats).get("step_num")
    for plane in profile.planes
    for line in plane.lines
    for event in line.events
    if event.name == ANNOTATION
  }


def test_the_chosen_steps_are_traced_and_the_memory_is_written(tmp_path):
  told = []
  folder = tmp_path / "profile"
  run(Profiler(range(3, 6), folder, start=1, log=told.append), range(2, 8))
  assert annotated_steps(folder) == {3, 4, 5}
  memory = gzip.decompress((folder / "memory.0.pprof").read_bytes())
  assert b"space" in memory and b"bytes" in memory  # the sample types of such a profile
  (line,) = told
  assert f"xprof --logdir={folder}" in line and "memory.0.pprof" in line


def test_no_steps_no_files(tmp_path):
  run(Profiler(range(0), tmp_path / "profile", start=0), range(1, 4))
  assert not (tmp_path / "profile").exists()


def test_an_exception_in_between_ends_the_trace(tmp_path):
  profiler = Profiler(range(1, 3), tmp_path / "a", start=0)
  with pytest.raises(KeyError), profiler, profiler.step(1):
    raise KeyError
  run(Profiler(range(1, 3), tmp_path / "b", start=0), range(1, 3))
  assert annotated_steps(tmp_path / "b") == {1, 2}
