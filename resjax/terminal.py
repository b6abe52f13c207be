"""Consoles that print text as it is: a name in brackets or colons is no markup and no emoji."""

from typing import Any, NoReturn

from rich.console import Console


class _Console(Console):
  def on_broken_pipe(self) -> NoReturn:
    """Leaves it to the command what happens when nobody reads its output any more."""
    raise BrokenPipeError


def console(**options: Any) -> Console:
  """Returns a console of rich, with its options, that takes no text for markup."""
  return _Console(markup=False, emoji=False, **options)
