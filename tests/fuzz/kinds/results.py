"""Files of results that a command reads again: of a ladder, of a planned sweep, of a retrieval."""

import json
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz import mutations, originals
from tests.fuzz.cases import Case, Place
from tests.fuzz.forks import Done


def _replaced(name: str, content: bytes):
  def damage(place: Place) -> None:
    place.path(name).write_bytes(content)

  return damage


def _is_json(name: str):
  """Returns the check that the file, which the command wrote anew, holds finite numbers alone."""

  def check(place: Place, done: Done) -> str:
    del done
    try:
      json.loads(place.path(name).read_text(), parse_constant=_refuse)
    except (OSError, ValueError) as error:
      return f"{name}: {error}"
    return ""

  return check


def _refuse(word: str) -> None:
  raise ValueError(f"holds {word}")


@st.composite
def ladder(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged record, or damaged losses, of one of the runs of a ladder."""
  rung = draw(st.sampled_from(originals.RUNGS))
  file = draw(st.sampled_from(["run.json", "metrics.jsonl", "plan.json"]))
  name = "ladder/plan.json" if file == "plan.json" else f"ladder/{rung}-standard/seed_0/{file}"
  content = (original / name).read_bytes()
  if file == "metrics.jsonl":
    lines = content.splitlines()
    changed = draw(mutations.of_json(json.loads(lines[-1]), prefer=("validation/loss", "step")))
    content = b"\n".join([*lines[:-1], changed.content, b""])
  else:
    changed = draw(mutations.of_json(json.loads(content), prefer=("costs", "questions")))
    content = changed.content
  return Case(
    kind="ladder",
    command="ladder",
    arguments=originals.LADDER,
    what=f"{name}: {changed.what}",
    damage=_replaced(name, content),
    names=("ladder", file),
    right=_is_json("ladder/ladder.json"),
    writes=("ladder",),
  )


@st.composite
def plan(draw: st.DrawFn, original: Path) -> Case:
  """Draws a damaged plan of a sweep."""
  changed = draw(mutations.of_json(json.loads((original / "planned" / "plan.json").read_text())))
  return Case(
    kind="plan",
    command="sweep",
    arguments=originals.PLANNED,
    what=f"plan.json: {changed.what}",
    damage=_replaced("planned/plan.json", changed.content),
    names=("plan.json", "seeds"),
    right=_is_json("planned/results.json"),
    writes=("planned",),
  )


@st.composite
def retrieval(draw: st.DrawFn, original: Path) -> Case:
  """Draws damaged results of resjax depth_retrieval, which adds to those that are there."""
  text = json.loads((original / "retrieval" / "results.json").read_text())
  changed = draw(mutations.of_json(text, prefer=("cells", "setup")))
  return Case(
    kind="retrieval",
    command="depth_retrieval",
    arguments=originals.RETRIEVAL,
    what=f"results.json: {changed.what}",
    damage=_replaced("retrieval/results.json", changed.content),
    names=("results.json",),
    right=_is_json("retrieval/results.json"),
    writes=("retrieval",),
  )
