"""Progress in a notebook: one output that changes in place, with a fake for IPython."""

import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from resjax.base import terminal
from resjax.base.records.progress import Progress


@pytest.fixture
def outputs(monkeypatch):
  """What is shown: a list for each output, of what it was drawn as."""
  found = []

  def display(shown, display_id):
    assert display_id
    drawn = []

    def draw(shown):
      plain = Console(force_jupyter=False, color_system=None, width=100)
      with plain.capture() as captured:
        plain.print(shown)
      drawn.append(captured.get().strip())

    draw(shown)
    found.append(drawn)
    return SimpleNamespace(update=draw)

  monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
  monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
  monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
  return found


def test_a_bar(outputs, capsys, monkeypatch):
  monkeypatch.setattr(terminal, "_SECONDS_BETWEEN", 0)
  with Progress(40, start=10) as shown:
    with shown.doing("compiling"):
      pass
    shown.update(20, {"loss": 3.5})
    shown.message("validation: 1.9")
    shown.update(21)
  (drawn,) = outputs
  assert drawn[0].startswith("step 10/40") and "compiling" in "".join(drawn)
  assert all(words in drawn[-1] for words in ("21/40", "loss 3.5")) and "compiling" not in drawn[-1]
  assert capsys.readouterr().out == "validation: 1.9\n"


def test_it_is_not_drawn_at_every_step(outputs):
  with Progress(1000) as shown:
    for step in range(1000):
      shown.update(step)
  assert len(outputs[0]) < 20 and "999/1000" in outputs[0][-1]


def test_what_is_being_done(outputs, monkeypatch):
  monkeypatch.setattr(terminal, "_SECONDS_BETWEEN", 0)
  with terminal.status() as tell:
    tell("measuring [b]")
  assert outputs == [["", "measuring [b]", ""]]
  with terminal.status(quiet=True) as tell:
    tell("measuring")
  assert len(outputs) == 1
