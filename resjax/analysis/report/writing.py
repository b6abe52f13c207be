"""The files of a report: the page, a folder of PNGs, and one JSON file."""

from collections.abc import Sequence

from resjax import locations
from resjax.analysis import plots
from resjax.analysis.report.heat_figure import heat_figure
from resjax.analysis.report.page import page
from resjax.analysis.report.results import Results, to_json
from resjax.analysis.report.sections import Drawn
from resjax.locations import Location

PAGE, PLOTS, NUMBERS = "report.html", "plots", "results.json"


def write(results: Sequence[Results], folder: Location) -> list[Location]:
  """Writes a report into a folder; returns the paths of page, plots and JSON file.

  The page comes last and at once: where it is, it is whole, and so is what it points to.
  """

  def save(drawn: Drawn) -> None:
    plots.save(drawn.figure, folder / PLOTS / f"{drawn.name}.png")

  locations.write_text(folder / NUMBERS, to_json(results))  # first: nothing else is hard to repeat
  for number, one in enumerate(results, 1):
    if one.heat is not None:  # the page has it as a table
      figure = heat_figure(one.heat, one.alignment.model)
      plots.save(figure, folder / PLOTS / f"{number}_heat.png")
  html = page(results, save)
  locations.write_text(folder / PAGE, html)
  return [folder / PAGE, folder / PLOTS, folder / NUMBERS]
