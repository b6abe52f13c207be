"""Progress as a bar on a terminal, as lines elsewhere, with numbers that are never cut."""

import io
import math
import re
import subprocess
import sys

import jax.numpy as jnp
import pytest

from resjax.base.records import progress


@pytest.mark.parametrize(
  ("value", "text"),
  [
    (3.4119, "3.412"),
    (1.92, "1.920"),
    (6e-4, "6.0e-4"),
    (-6e-4, "-6.0e-4"),
    (0.05, "0.05000"),
    (0, "0"),
    (12345, "12.3k"),
    (999.96, "1.0k"),
    (100, "100.0"),
    (2.5e9, "2.5G"),
    (3e15, "3000.0T"),
    (math.nan, "nan"),
    (jnp.float32(-jnp.inf), "-inf"),
  ],
)
def test_numbers(value, text):
  assert progress.format_number(value) == text


METRICS = {"loss": 3.4119, "bpb": 1.92, "lr": 6e-4, "tok/s": 12345.0}
LINE = "loss 3.412  bpb 1.920  lr 6.0e-4  tok/s 12.3k"


class Terminal(io.StringIO):
  def isatty(self):
    return True


def test_lines_without_a_terminal():
  stream = io.StringIO()
  with progress.Progress(1000, stream=stream) as shown:
    shown.update(99)
    shown.update(100, METRICS)
    shown.message("[sample] text")
  assert stream.getvalue() == f"step 100/1000  {LINE}\n[sample] text\n"


def test_bar_on_a_terminal(monkeypatch):
  monkeypatch.setenv("TERM", "xterm-256color")
  monkeypatch.setenv("COLUMNS", "120")
  stream = Terminal()
  with progress.Progress(1000, start=90, stream=stream) as shown:
    shown.update(100, METRICS)
    shown.message("[sample] text")
    shown.update(101)
  text = stream.getvalue()
  assert "101/1000" in text and LINE in text and "[sample] text" in text
  assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize(("columns", "last"), [(80, "tok/s 123.4k"), (70, "lr 6.0e-4"), (30, "")])
def test_a_narrow_terminal_gets_whole_metrics(columns, last, monkeypatch):
  monkeypatch.setenv("TERM", "xterm-256color")
  monkeypatch.setenv("COLUMNS", str(columns))
  stream = Terminal()
  with progress.Progress(100_000, stream=stream) as shown:
    shown.update(12_345, METRICS | {"tok/s": 123_400.0})
  line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).rstrip().splitlines()[-1]
  assert len(line) <= columns and "12345/100000" in line and "…" not in line
  assert last in line
  assert [key in line for key in METRICS] == sorted((key in line for key in METRICS), reverse=True)


def test_the_bar_says_what_is_done_between_steps(monkeypatch):
  monkeypatch.setenv("TERM", "xterm-256color")
  monkeypatch.setenv("COLUMNS", "80")
  stream = Terminal()
  with progress.Progress(10, stream=stream) as shown, shown.doing("compiling"):
    shown.message("on the way")  # draws the bar anew
  lines = stream.getvalue().splitlines()
  assert any("compiling" in line for line in lines) and "compiling" not in lines[-1]
  lines = io.StringIO()
  with progress.Progress(10, stream=lines) as shown, shown.doing("compiling"):
    shown.message("on the way")
  assert lines.getvalue() == "compiling\non the way\n"


def test_dumb_terminal_gets_lines(monkeypatch):
  monkeypatch.setenv("TERM", "dumb")
  stream = Terminal()
  with progress.Progress(10, stream=stream) as shown:
    shown.update(1, {"loss": 2.0})
  assert stream.getvalue() == "step 1/10  loss 2.000\n"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_keyboard_interrupt_passes(stream, monkeypatch):
  monkeypatch.setenv("TERM", "xterm")
  with pytest.raises(KeyboardInterrupt), progress.Progress(10, stream=stream()) as shown:
    shown.update(1, {"loss": 2.0})
    raise KeyboardInterrupt


def test_progress_of_other_processes_is_silent():
  for stream in (io.StringIO(), Terminal()):
    with progress.Progress(10, stream=stream, enabled=False) as shown:
      shown.update(1, {"loss": 2.0})
      shown.message("x")
    assert stream.getvalue() == ""


def test_redirected_output():
  code = (
    "from resjax.base.records.progress import Progress\n"
    "with Progress(3) as p:\n"
    "  for i in (1, 2, 3): p.update(i, {'loss': 1 / i})\n"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
  assert done.stdout == "step 1/3  loss 1.000\nstep 2/3  loss 0.5000\nstep 3/3  loss 0.3333\n"
