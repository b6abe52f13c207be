"""Consoles take no text for markup, and leave a closed pipe to the command."""

import io

import pytest

from resjax.base import terminal

NAMES = ("[/x]", "[red]a[/red]", ":fire:", "$a_{$", "{task}")


@pytest.mark.parametrize("name", NAMES)
def test_text_is_printed_as_it_is(name):
  stream = io.StringIO()
  console = terminal.console(file=stream, width=80)
  table = terminal.Table(title=name)
  table.add_column(name)
  table.add_row(f"cell {name}")
  console.print(name)
  console.print(table)
  console.rule(name)
  printed = stream.getvalue()
  assert printed.count(name) == 5 and f"cell {name}" in printed


def test_a_closed_pipe_is_an_error_of_the_command():
  class Closed(io.StringIO):
    def write(self, text):
      raise BrokenPipeError

  with pytest.raises(BrokenPipeError):
    terminal.console(file=Closed()).print("x")


def drawn(width: int, *rows: tuple[str, ...]) -> list[str]:
  stream = io.StringIO()
  table = terminal.Table()
  table.add_column("path")
  table.numbers(*("size" for _ in rows[0][1:]))
  for row in rows:
    table.add_row(*row)
  terminal.console(file=stream, width=width).print(table)
  return [line.strip() for line in stream.getvalue().splitlines() if line.strip()][2:]


def test_names_are_folded_between_words_and_numbers_never():
  sizes = ("524,288,000", "134,217,728")
  assert drawn(80, ("layers/k_proj/kernel", *sizes))[0].split() == ["layers/k_proj/kernel", *sizes]
  first, *rest = drawn(50, ("layers/attention/k_proj/kernel", *sizes))
  assert first.split() == ["layers/attention/", *sizes] and rest == ["k_proj/kernel"]
  lines = drawn(20, ("block_attn_res_views/" + "y" * 20, *sizes))
  assert lines[0].split()[1:] == list(sizes)  # wider than the terminal, but whole
  words = [line.split()[0] for line in lines]
  assert words == ["block_attn_res_", "views/", 15 * "y", 5 * "y"]


def test_logs_are_wider_than_terminals(monkeypatch):
  monkeypatch.delenv("COLUMNS", raising=False)
  assert terminal.console(file=io.StringIO()).width == terminal.LOG_WIDTH
  monkeypatch.setenv("COLUMNS", "70")
  assert terminal.console(file=io.StringIO()).width == 70


def test_sentences_are_broken_between_words_on_a_terminal_alone():
  text = "11.5 MFLOP and 2,560 bytes"
  for is_terminal, want in ((True, ["11.5 MFLOP and", "2,560 bytes"]), (False, [text])):
    stream = io.StringIO()
    options = {"width": 15, "force_terminal": is_terminal, "color_system": None}
    terminal.say(terminal.console(file=stream, **options), text)
    assert [line.strip() for line in stream.getvalue().splitlines()] == want


def test_a_log_says_how_far_work_is_every_half_minute(monkeypatch, capsys):
  now = [0.0]
  monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
  with terminal.status() as status:
    status("loading")
    for done in range(9):
      status("measuring [b]", done, 8)
      now[0] += 20 if done else 100  # the compiler takes its time
    status.say("as it is: [b]")
  assert capsys.readouterr().err.splitlines() == [
    "measuring [b]: 12% done", "measuring [b]: 38% done, 2 min left",
    "measuring [b]: 62% done, 60 s left", "measuring [b]: 88% done, 20 s left", "as it is: [b]",
  ]  # fmt: skip
  with terminal.status(quiet=True) as status:
    status("measuring")
    status.say("nothing")
  assert capsys.readouterr().err == ""


def test_durations_are_rounded():
  assert [terminal.in_time(seconds) for seconds in (7.4, 89, 91, 3500, 7500)] == [
    "7 s", "89 s", "2 min", "58 min", "2 h 5 min",
  ]  # fmt: skip
