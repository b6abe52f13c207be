"""Data that were built earlier, and then damaged."""

import json
from pathlib import Path

from hypothesis import strategies as st

from tests.fuzz import mutations, originals
from tests.fuzz.cases import Case, Place
from tests.fuzz.kinds.runs import same


@st.composite
def damaged(draw: st.DrawFn, original: Path) -> Case:
  """Draws damage to a built file: to its bytes or JSON, or to which file it is."""
  files = sorted(
    str(path.relative_to(original))
    for path in (original / "data").rglob("*")
    if path.is_file() and path.name != ".lock"
  )
  name, other = draw(st.sampled_from(files)), draw(st.sampled_from(files))
  content = (original / name).read_bytes()
  action = draw(st.sampled_from(["change", "change", "change", "delete", "swap", "folder"]))
  if name.endswith(".json"):
    changed = draw(
      mutations.of_json(
        json.loads(content),
        prefer=("shardLengths", "numBytes", "rows", "tokens", "documents", "splits", "name"),
      )
    )
  else:
    changed = draw(mutations.of_bytes(content))

  def damage(place: Place) -> None:
    path = place.path(name)
    match action:
      case "change":
        path.write_bytes(changed.content)
      case "delete":
        path.unlink()
      case "swap":
        first, second = path.read_bytes(), place.path(other).read_bytes()
        path.write_bytes(second)
        place.path(other).write_bytes(first)
      case _:
        path.unlink()
        path.mkdir()

  what = {"change": f"{name}: {changed.what}", "swap": f"{name} and {other} swapped"}
  return Case(
    kind="built_data",
    command="train",
    arguments=originals.PASS,
    what=what.get(action, f"{action}: {name}"),
    damage=damage,
    names=(Path(name).name, Path(other).name if action == "swap" else "", "data"),
    right=same("pass"),
    writes=("out", "data"),
  )
