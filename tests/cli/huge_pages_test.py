"""Whether the arrays of a command lie in huge pages."""

import os
import pathlib
import subprocess
import sys

import pytest

from resjax.cli import huge_pages

SYSTEM = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
# A step that needs 200 MB beside what it takes and returns, and how many pages its calls fault.
CONFIG = """
import resource

import jax
import jax.numpy as jnp


def get_config():
  @jax.jit
  def step(x):
    rows = jax.lax.scan(lambda c, _: (jnp.sin(c) + 1, c), x, length=50)[1]
    return jax.lax.scan(lambda c, row: (c / 2 + row, None), x, rows, reverse=True)[0]

  x = jnp.ones(1_000_000)
  step = step.lower(x).compile()
  assert step.memory_analysis().temp_size_in_bytes > 2e8
  faults = []
  for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
  raise ValueError(f"{min(faults)} pages")
"""


def only_asked():
  return huge_pages._is_known() and SYSTEM.exists() and "[madvise]" in SYSTEM.read_text()


@pytest.mark.skipif(not only_asked(), reason="here all processes have huge pages, or none can ask")
def test_a_step_faults_few_pages(tmp_path):
  (tmp_path / "config.py").write_text(CONFIG)

  def pages(**variables):
    env = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    command = [sys.executable, "-m", "resjax", "train", f"--config={tmp_path / 'config.py'}"]
    done = subprocess.run(command, env=env | variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and done.stdout == ""
    return int(done.stderr.split()[-2])

  assert pages(GLIBC_TUNABLES="") > 40_000  # of 4 KiB, which somebody wants
  assert pages() < 4_000


@pytest.fixture
def started(monkeypatch):
  """The command lines that a process was started again with."""
  found = []
  monkeypatch.setattr(os, "execv", lambda _, words: found.append(words[1:]))
  monkeypatch.setattr(os, "environ", {})
  monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "resjax", "train", "--workdir=a"])
  return found


@pytest.mark.parametrize(
  ("system", "library", "words", "times"),
  [
    ("always [madvise] never", "glibc 2.35", ["train", "--workdir=a"], 1),
    ("always [madvise] never", "glibc 3.0.1", ["train", "--workdir=a"], 1),
    ("always [madvise] never", "glibc 2.34", ["train", "--workdir=a"], 0),
    ("always [madvise] never", None, ["train", "--workdir=a"], 0),
    ("always [madvise] never", "glibc 2.35", ["train", "--workdir=b"], 0),  # called from Python
    ("[always] madvise never", "glibc 2.35", ["train", "--workdir=a"], 0),
    ("always madvise [never]", "glibc 2.35", ["train", "--workdir=a"], 0),
    ("", "glibc 2.35", ["train", "--workdir=a"], 0),
  ],
)
def test_a_process_starts_again_once_and_only_where_it_helps(
  monkeypatch, tmp_path, started, system, library, words, times
):
  if system:
    (tmp_path / "enabled").write_text(system)
  monkeypatch.setattr(huge_pages, "_SYSTEM", tmp_path / "enabled")
  monkeypatch.setattr(os, "confstr_names", {"CS_GNU_LIBC_VERSION": 2})
  monkeypatch.setattr(os, "confstr", lambda _: library)
  huge_pages.ask(words)
  assert started == [["-m", "resjax", "train", "--workdir=a"]] * times
  huge_pages.ask(words)
  assert len(started) == times
