"""Consoles take no text for markup, and leave a closed pipe to the command."""

import io

import pytest
from rich.table import Table

from resjax import terminal

NAMES = ("[/x]", "[red]a[/red]", ":fire:", "$a_{$", "{task}")


@pytest.mark.parametrize("name", NAMES)
def test_text_is_printed_as_it_is(name):
  stream = io.StringIO()
  console = terminal.console(file=stream, width=80)
  table = Table(title=name)
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
