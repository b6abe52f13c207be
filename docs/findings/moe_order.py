"""What the two sweeps of configs/ablations/moe_order.py say together, by the plan there.

  python -m docs.findings.moe_order RUNS

keeps plan.json and results.json of the sweeps in the folder RUNS, each in a folder of docs/findings
with its name, and prints what a page may say: `moe_order.losses` and `moe_order.rates`, tables of
both, `moe_order.missing`, which arms are not finished, and, once none is, the verdict
`moe_order.order`, with `moe_order.order.pairs` and `moe_order.order.counts`. What each sweep says
of its own contrasts, as in docs/findings/statements.py, is `moe_order.ARM` of the dense one, and
`moe_order_moe.ARM` of the other.
"""

import pathlib
import sys

from configs.ablations import moe_order
from docs.findings import statements, swept_models
from resjax.study.sweeps import plan, table

FOLDER = pathlib.Path(__file__).parent
SWEEPS = {"dense": "moe_order", "mixture": "moe_order_moe"}


def main(runs: str) -> None:
  """Keeps the sweeps of a folder, and prints what a page may say of them."""
  for name in SWEEPS.values():
    sweep = pathlib.Path(runs) / name
    if (sweep / table.FILE_NAME).exists():
      swept_models.keep_sweep(sweep, FOLDER / name)
  for name, text in numbers().items():
    print(f"{name}: {text}")


def numbers(folder: pathlib.Path = FOLDER) -> dict[str, str]:
  """Returns the tables, and the verdict on the order where both sweeps are finished."""
  kept = {kind: folder / name for kind, name in SWEEPS.items()}
  kept = {kind: sweep for kind, sweep in kept.items() if (sweep / plan.FILE_NAME).exists()}
  if not kept:
    return {}
  found = statements.of_sweep(kept["dense"]) if "dense" in kept else {}
  losses = {kind: statements.ranked(sweep) for kind, sweep in kept.items()}
  found["losses"] = statements.losses_table(losses)
  found["rates"] = statements.rates_table(kept)
  missing = [
    f"`{arm}` ({kind})"
    for kind, name in SWEEPS.items()
    for arm in statements.unfinished(folder / name, moe_order.SYSTEMS)
  ]
  found["missing"] = ", ".join(missing) or "none"
  if not missing:
    found |= statements.order(losses["dense"], losses["mixture"], moe_order.PLAN["margin"])
  return found


if __name__ == "__main__":
  main(*sys.argv[1:])
