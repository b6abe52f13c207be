"""Shows how cost grows with size, and fails where something grows faster than it may.

  resjax bench growth                                  (all parts, on a machine with nothing else)
  resjax bench growth --what=layers,tokens --counted   (what compilers count, on any machine)
  resjax bench growth --what=data --sizes=data=10,100

Parts are data (MB of text), rows, tokens and layers (training steps, compiled and never run),
decode, prefill, checkpoint (million parameters), sweep (runs) and score. Between each size and the
next a cost grows as the size to some power; every cost has a highest power, and why. Where one is
above it the exit code is 1. --systems names residual systems of configs/ablations.

bench_growth.json in --out is written as rows are found, and keeps the rows of earlier calls that
are not measured again. It is printed at the end, and as tables takes the place of the lines between
`<!-- costs -->` and `<!-- end of costs -->` of --page.
"""

from pathlib import Path

import jax
from absl import flags

from launch import topology
from launch.bench import report
from launch.bench.growth import parts, rows
from resjax.cli import command

_WHAT = flags.DEFINE_list("what", [], "Parts; default: all.")
_SIZES = flags.DEFINE_multi_string("sizes", [], "PART=SIZE,SIZE,... for other sizes of a part.")
_SYSTEMS = flags.DEFINE_list("systems", list(parts.SYSTEMS), "Residual systems, or all.")
_COUNTED = flags.DEFINE_bool("counted", False, "Only what the compiler counts, and no time.")
_PAGE = flags.DEFINE_string("page", "", "A Markdown file whose tables are replaced.")


def main() -> None:
  """Measures the parts that --what names, and prints and keeps a row for each cost of each.

  Raises:
    ValueError: a flag is wrong, or something grows faster than it may.
  """
  wanted = parts.chosen(_WHAT.value, _SIZES.value, _COUNTED.value)
  systems = parts.systems(_SYSTEMS.value)
  page = Path(_PAGE.value) if _PAGE.value else None
  if page is not None:
    report.replace_table(page.read_text(), "")  # before anything is measured
  path = report.folder() / "bench_growth.json"
  jax.config.update("jax_enable_compilation_cache", False)  # a program that is kept takes no time
  found, problems = parts.measure(wanted, systems, topology.FLAG.value, _COUNTED.value, path)
  report.write_report(found, "growth")
  if page is not None:
    page.write_text(report.replace_table(page.read_text(), rows.table(found["rows"])))
  if problems:
    raise ValueError(f"faster than allowed: {'; '.join(problems)}")


if __name__ == "__main__":
  command.run(main)
