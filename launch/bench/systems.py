"""What every residual system costs: parameters, depth state, FLOPs, memory traffic of a real step.

  resjax bench systems --out=docs/systems --page=docs/systems.md
  resjax bench systems --out=docs/systems --page=docs/systems.md --only=mhc,gate --again

Parameters, depth state (bfloat16) and forward FLOPs are for configs/gpt2_124m.py. Memory and
passes are of the training step of configs/llama_1p3b.py with 4 rows of 2048 tokens and full
recomputation, on one v5p that need not be there (the extra `tpu`, and half a minute to three per
system); passes per attention or MLP. `systems` in configs/ablations lists the systems.

costs.json in --out is written after every system, so that the same command goes on where it was
stopped; a system that another version of JAX compiled is compiled again. The table is printed, and
takes the place of the lines between `<!-- costs -->` and `<!-- end of costs -->` of --page.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags
from ml_collections import ConfigDict

from configs import ablations, gpt2_124m, llama_1p3b
from launch.bench import report
from launch.bench.program import read_step
from resjax import combinators
from resjax.aot import GIB, DoesNotFitError, absent_devices, compile_step
from resjax.cli import command
from resjax.models import ModelDef, forward_flops_per_token
from resjax.train import experiment
from resjax.train.runs import Run

_ONLY = flags.DEFINE_list("only", [], "Names of the systems to compile; default: all.")
_AGAIN = flags.DEFINE_bool("again", False, "Compile the systems of --only again.")
_PAGE = flags.DEFINE_string("page", "", "A Markdown file whose table is replaced.")

_SHARED = {"train.batch_size": 4, "train.microbatches": 1, "mesh.fsdp": 1, "model.remat": "full"}

Costs = Mapping[str, Any]


def main() -> None:
  """Compiles the systems whose costs are not known, one by one, and prints the table of all."""
  systems = dict(ablations.systems())
  for name in _ONLY.value:
    if name not in systems:
      raise ValueError(f"--only={name}: no such system; there are {', '.join(systems)}")
  page = Path(_PAGE.value) if _PAGE.value else None
  if page is not None:
    report.replace_table(page.read_text(), "")  # before anything is compiled
  path = report.folder() / "costs.json"
  found = json.loads(path.read_text()) if path.exists() else {}
  for name in _ONLY.value or systems:
    known = found.get(name, {}).get("jax") == jax.__version__
    if known and not (_AGAIN.value and name in _ONLY.value):
      continue
    found[name] = _costs(systems[name])
    found = {name: found[name] for name in systems if name in found}
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(name, json.dumps(found[name]), flush=True)
  text = table(found)
  print(text)
  if page is not None:
    page.write_text(report.replace_table(page.read_text(), text))


def _costs(overrides: Mapping[str, Any]) -> Costs:
  """Returns the costs of a system: with configs/gpt2_124m.py, and of a step of 1.3B."""
  small = _build(gpt2_124m.get_config(), overrides)
  model = ModelDef(small.decoder, small.layout)
  costs: dict[str, Any] = {
    "jax": jax.__version__,
    "parameters": sum(leaf.size for leaf in model.leaves()),
    "state_bytes": model.combinator.state_bytes_per_token(jnp.bfloat16),
    "flops": forward_flops_per_token(small.decoder, model.combinator, small.data.seq_len),
  }
  large = _build(llama_1p3b.get_config(), overrides)
  try:
    compiled = compile_step.compile_step(large)
  except DoesNotFitError as error:
    return costs | {"gib": error.required / GIB, "passes": None, "hbm_passes": None}
  passes = read_step.read_step(compiled.text, large).passes
  sublayers = len(large.decoder.sites) / 2  # another site makes no sublayer of the model cheaper
  return costs | {
    "gib": compiled.memory.total / GIB,
    "passes": sublayers * sum(passes.total.values()),
    "hbm_passes": sublayers * sum(passes.hbm.values()),
  }


def _build(config: ConfigDict, overrides: Mapping[str, Any]) -> Run:
  config.update_from_flattened_dict(_SHARED | dict(overrides))
  target = absent_devices.describe("v5p-8")
  return experiment.build(config, target.devices[:1])


def table(found: Mapping[str, Costs]) -> str:
  """Returns the Markdown table of costs, by family; additions are relative to `standard`."""
  lines = [
    "| system | parameters | of 124M | state, B/token | FLOPs | passes | more | in HBM | GiB |",
    "|---|---|---|---|---|---|---|---|---|",
  ]
  for family in combinators.FAMILIES:
    rows = [(name, costs) for name, costs in found.items() if family_of(name) == family]
    lines += [f"| **{family}** | | | | | | | | |"] * bool(rows)
    lines += [f"| `{name}` | {' | '.join(_cells(costs, found))} |" for name, costs in rows]
  return "\n".join(lines) + "\n"


def family_of(name: str) -> str:
  """Returns the family of a system; `others` if it is no combinator."""
  return combinators.get(name).family if name in combinators.names() else "others"


def _cells(costs: Costs, found: Mapping[str, Costs]) -> Iterator[str]:
  standard = found.get("standard", costs)
  added = costs["parameters"] - standard["parameters"]
  yield f"{added:+,}"
  yield f"{added / standard['parameters']:+.2%}"
  yield f"{costs['state_bytes']:,}"
  yield f"{costs['flops'] / standard['flops'] - 1:+.2%}"
  if costs["passes"] is None or standard["passes"] is None:
    yield from ("does not fit", "", "")
  else:
    yield f"{costs['passes']:.1f}"
    yield f"{costs['passes'] - standard['passes']:+.1f}"
    yield f"{costs['hbm_passes'] - standard['hbm_passes']:+.1f}"
  yield f"{costs['gib']:.1f}"


if __name__ == "__main__":
  command.run(main)
