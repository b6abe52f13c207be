"""The kinds of hostile input, and the cases of each, drawn by hypothesis."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

from tests.fuzz.cases import Case
from tests.fuzz.kinds import (
  benches,
  built_data,
  launchers,
  models,
  names,
  results,
  runs,
  settings,
  strangers,
  texts,
)

_Kind = Callable[[Path], st.SearchStrategy[Case] | list[Case]]

# Each kind with its share of all cases. A kind gets the folder of the valid files.
ALL: Mapping[str, tuple[int, _Kind]] = {
  "override": (14, settings.override),
  "config_file": (6, settings.config_file),
  "flag": (10, settings.flag),
  "run_json": (8, runs.record),
  "summary": (5, runs.summary),
  "metrics": (4, runs.metrics),
  "checkpoint": (7, runs.checkpoint),
  "built_data": (7, built_data.damaged),
  "text": (10, texts.damaged),
  "tokens": (4, texts.tokens),
  "prompt": (4, names.prompt),
  "name": (4, names.name),
  "hf_config": (10, models.config),
  "hf_index": (4, models.index),
  "safetensors": (5, models.tensors),
  "tokenizer": (5, models.tokenizer),
  "sensitivity": (4, models.sensitivity),
  "ladder": (4, results.ladder),
  "plan": (3, results.plan),
  "retrieval": (4, results.retrieval),
  "file_kind": (5, runs.no_file),
  "launcher": (10, launchers.arguments),
  "bench": (3, benches.flag),
  "injection": (0, launchers.known),
  "stranger": (0, strangers.cases),  # lists, of which all are run
}


def generate(
  count: int, chosen: Sequence[str] | None, seed: int, original: Path
) -> dict[str, list[Case]]:
  """Returns cases by kind: so many that are drawn, shared as ALL says, and all that are listed.

  Args:
    count: how many are drawn.
    chosen: the kinds; None for all.
    seed: decides the cases.
    original: the folder of the valid files.
  """
  shares = {kind: ALL[kind][0] for kind in chosen or ALL}
  total, given, before, found = sum(shares.values()), 0, 0, {}
  for kind, share in shares.items():
    before += share
    number = round(count * before / max(total, 1)) - given
    given += number
    source = ALL[kind][1](original)
    found[kind] = source if isinstance(source, list) else _draw(source, number, seed)
  return found


def _draw(strategy: st.SearchStrategy[Case], count: int, seed: int) -> list[Case]:
  found: dict[tuple, Case] = {}
  options = hypothesis.settings(
    max_examples=4 * max(count, 1),  # some are equal
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
  )

  @hypothesis.seed(seed)
  @options
  @hypothesis.given(strategy)
  def collect(case: Case) -> None:
    found.setdefault((case.what, case.command, case.arguments), case)

  collect()
  return list(found.values())[:count]
