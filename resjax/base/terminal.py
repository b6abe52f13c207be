"""Consoles and tables that print text and numbers as they are: no markup, and nothing cut off."""

import base64
import contextlib
import functools
import html
import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NoReturn

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.jupyter import JupyterMixin
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table as _RichTable
from rich.text import Text

LOG_WIDTH = 120  # columns of what is no terminal, unless $COLUMNS says otherwise
_COLUMNS = 80
_LEAST_NAME = 16  # columns that names keep where numbers need the rest
_SECONDS_BETWEEN = 0.25  # two drawings of an output of a notebook
_SECONDS_BETWEEN_LINES = 30.0  # in a log


class _Console(Console):
  def on_broken_pipe(self) -> NoReturn:
    """Leaves it to the command what happens when nobody reads its output any more."""
    raise BrokenPipeError

  def print(self, *objects: Any, **options: Any) -> None:
    """Prints objects; a line that is too long goes on in the next one instead of being cut."""
    super().print(*objects, **{"crop": False} | options)


class Name:
  """A name in a table, which goes on in the next line after a space, a slash or an underscore."""

  def __init__(self, text: str):
    self.text = text

  def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
    longest = max(map(len, self.text.split("\n")))
    return Measurement(min(longest, _LEAST_NAME), longest).with_maximum(options.max_width)

  def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
    for line in self.lines(options.max_width):
      yield Segment(line)
      yield Segment.line()

  def lines(self, width: int) -> list[str]:
    """Returns the lines of the name, none of which is longer than the width."""
    lines = [""]
    for part in self._parts(width):
      if lines[-1] and len(lines[-1] + part.rstrip(" ")) > width:
        lines.append("")
      lines[-1] += part
    return [line.rstrip(" ") for line in lines]

  def _parts(self, width: int) -> Iterator[str]:
    """Yields unbreakable parts: words and folders, or parts between underscores of long ones."""
    for word in re.findall(r"[^ /]*[ /]|[^ /]+", self.text):
      fits = len(word.rstrip(" ")) <= width
      yield from [word] if fits else re.findall(rf"[^_]{{1,{width - 1}}}_?|_", word)


class Table(_RichTable):
  """A plain table, which is wider than the terminal where its numbers would be cut otherwise.

  Args:
    *names: the headings of columns of names, which may be folded; they are the first columns.
    numbers: the headings of the columns of numbers behind them.
    **options: options of a rich table.
  """

  def __init__(self, *names: str, numbers: Iterable[str] = (), **options: Any):
    usual: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "padding": (0, 1, 0, 0)}
    super().__init__(*names, **usual | options)
    self.numbers(*numbers)

  def numbers(self, *headings: str, justify: Literal["left", "right"] = "right") -> None:
    """Adds columns of numbers, and of words that are never folded."""
    for heading in headings:
      self.add_column(heading, justify=justify, no_wrap=True)

  def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
    """Adds a row, in which texts of columns without `no_wrap` are names that may be folded."""
    shown = (
      Name(cell) if isinstance(cell, str) and not column.no_wrap else cell
      for cell, column in zip(cells, self.columns, strict=False)
    )
    super().add_row(*shown, **options)

  def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
    width = max(options.max_width, self._least(console, options.update(width=10_000)))
    yield from super().__rich_console__(console, options.update(width=width))

  def _least(self, console: Console, options: ConsoleOptions) -> int:
    """Returns the width at which no number is cut, and names are folded as far as they may be."""
    least = self.__rich_measure__(console, options).maximum
    for column in self.columns:
      names = [cell.text for cell in column.cells if isinstance(cell, Name)]
      least -= max(0, max(map(len, names), default=0) - _LEAST_NAME)
    return least


def console(**options: Any) -> Console:
  """Returns a console of rich, with its options, that takes no text for markup."""
  made = _Console(markup=False, emoji=False, **options)
  plain = not made.is_terminal and not made.is_jupyter
  if plain and "width" not in options and "COLUMNS" not in os.environ:
    made.width = LOG_WIDTH
  return made


def say(console: Console, text: str) -> None:
  """Prints sentences: broken between words on a terminal, as one line in pipes and logs."""
  console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def number(value: float | None, form: str) -> str:
  """Returns a number in a form such as `.4f` for a cell of a table, which None leaves empty."""
  return "" if value is None else format(value, form)


def text_of(show: Callable[[Console], object]) -> str:
  """Returns the output of a function on a console of 80 columns, stripped of outer empty lines."""
  shown = io.StringIO()
  show(console(file=shown, width=_COLUMNS, force_jupyter=False, color_system=None))
  return "\n".join(line.rstrip() for line in shown.getvalue().splitlines()).strip("\n")


def notebook_html(text: str, pictures: Iterable[bytes]) -> str:
  """Returns the HTML for a result in a notebook: its text, and below it PNG pictures.

  The pictures are part of the HTML, so that a saved or sent notebook has them.
  """
  data = (base64.b64encode(picture).decode() for picture in pictures)
  style = "max-width:100%;width:640px"
  figures = (f'<img style="{style}" src="data:image/png;base64,{one}">' for one in data)
  return f"<pre>{html.escape(text)}</pre>{''.join(figures)}"


class Status:
  """Shows the current activity and when it will be done, until the context is left.

  A terminal shows it on the standard error, a notebook below the cell, and anything else as a line
  on the standard error where half a minute has passed since the last one. Use it by `status`.
  """

  def __init__(self, console: Console, show: Callable[[str], object]):
    self._console, self._show = console, show
    self._doing, self._first = "", (0, 0.0)

  def __call__(self, doing: str, done: int = 0, total: int = 0) -> None:
    """Names the activity, of which some of all parts are done; 0 of 0 if that is not known."""
    now = time.monotonic()
    # The first part waits for the compiler, so the rest is judged by those behind it.
    if doing != self._doing or not self._first[0]:
      self._doing, self._first = doing, (done, now)
    since, start = self._first
    words = f"{doing}: {done / total:.0%} done" if total else doing
    if since < done < total:
      words += f", {in_time((total - done) * (now - start) / (done - since))} left"
    self._show(words)

  def say(self, text: str) -> None:
    """Prints a line that stays, on the standard error."""
    say(self._console, text)


@contextlib.contextmanager
def status(*, quiet: bool = False) -> Iterator[Status]:
  """Gives a `Status`; a quiet one shows nothing, as in all processes but the first."""
  shown = console(stderr=True, quiet=quiet)
  if shown.is_jupyter and not quiet:
    output = NotebookOutput(Text())
    try:
      yield Status(shown, lambda words: output.refresh(Text(words)))
    finally:
      output.draw(Text())
  elif shown.is_terminal:
    with shown.status("") as line:
      yield Status(shown, lambda words: line.update(Text(words)))
  else:
    yield Status(shown, functools.partial(_line, shown, [time.monotonic()]))


def _line(console: Console, printed: list[float], words: str) -> None:
  """Prints a line, unless the last one was printed a moment ago."""
  if time.monotonic() - printed[-1] >= _SECONDS_BETWEEN_LINES:
    say(console, words)
    printed.append(time.monotonic())


def in_time(seconds: float) -> str:
  """Returns a duration in two digits or so: `45 s`, `12 min`, `2 h 5 min`."""
  minutes = round(seconds / 60)
  if seconds < 90:
    return f"{seconds:.0f} s"
  return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class NotebookOutput:
  """Shows something of rich below the cell of a notebook, and draws it again where it changes.

  It needs no widgets, so it also shows in notebooks that are saved and converted.
  """

  def __init__(self, shown: JupyterMixin):
    from IPython.display import display  # a notebook has it, and nothing else needs it

    self._drawn = time.monotonic()
    self._handle = display(shown, display_id=True)

  def refresh(self, shown: JupyterMixin) -> None:
    """Draws something in its place, unless that was done a moment ago."""
    if time.monotonic() - self._drawn >= _SECONDS_BETWEEN:
      self.draw(shown)

  def draw(self, shown: JupyterMixin) -> None:
    """Draws something in its place."""
    self._handle.update(shown)
    self._drawn = time.monotonic()
