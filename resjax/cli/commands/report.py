"""Writes a page about a run or about a sweep, which opens in any browser without a network.

  resjax report runs/tiny
  resjax report runs/compare --out=compare.html

The page of a run shows its last losses, its curves, where it reads which token, its sample,
where the time went, and the settings that differ from configs/base.py. The page of a sweep
shows verdicts, plots and runs, from its results.json. It is page.html in the folder, or --out.
"""

import functools
from collections.abc import Callable

from absl import flags

from resjax.base import Location, locations
from resjax.cli import command
from resjax.train.runs import workdir

_OUT = flags.DEFINE_string("out", None, "The file to write; default: page.html in the folder.")
_PAGE = "page.html"


def main(words: list[str], after: list[str]) -> None:
  """Writes the page of the folder on the command line."""
  if len(words) != 1 or after:
    raise ValueError("name one folder of a run or of a sweep, for example: resjax report runs/tiny")
  folder = locations.path(words[0], "the folder")
  html = _kind(folder)(folder)
  out = folder / _PAGE
  if _OUT.value is not None:
    out = locations.path(_OUT.value, "--out", writable=True)
    locations.make_folder(out.parent, "--out")
  if out.is_dir():
    raise ValueError(f"--out={out} is a folder; give a file, for example {out / _PAGE}")
  try:
    locations.write_text(out, html)
  except OSError as error:
    if _OUT.value is not None:
      raise
    raise ValueError(f"{error}; or give another place, --out=FILE.html") from None
  print(out)


def _kind(folder: Location) -> Callable[[Location], str]:
  """Returns what makes the page of a folder.

  Raises:
    ValueError: the folder holds neither a run nor the results of a sweep.
  """
  # --help and mistakes need no matplotlib.
  from resjax.cli.actions import settings
  from resjax.study.sweeps import sweep_page, table
  from resjax.train import run_page

  if not folder.exists():
    raise ValueError(f"there is no folder {folder}; name one of a run or of a sweep")
  if (folder / workdir.RECORD).exists():
    return lambda place: run_page.page(place, settings.read_config("base", {}).to_dict())
  if (folder / table.FILE_NAME).exists():
    return sweep_page.page
  raise ValueError(
    f"{folder} holds neither a run ({workdir.RECORD}) nor the results of a sweep "
    f"({table.FILE_NAME}, which resjax sweep writes when it ends, and with --collect)"
  )


run = functools.partial(command.run, main, takes_words=True)
