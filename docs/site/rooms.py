"""The picture of docs/architecture.md: the rooms of resjax on their floors, and what flows.

python docs/site/rooms.py  # writes docs/rooms.svg
"""

import html
from pathlib import Path

FILE = Path(__file__).parents[1] / "rooms.svg"

# From the top: a room imports from lower floors alone. Rooms with a star are on the way of a step.
FLOORS = (
  {"__init__": "what `import resjax` offers", "__main__*": "resjax NAME: runs a command"},
  {"aot": "the step for absent devices", "cli": "commands; Experiment"},
  {"train*": "experiment.build: config to Run; step, loop, optimizer, checkpoints"},
  {"interop": "Hugging Face folders and their torch source, lm-eval, Linen"},
  {"testing": "what a combinator owes, checked", "study": "models analysed, scored, compared"},
  {"models*": "decoder, its layers, how they run along depth, loss, sampling"},
  {"nn": "attention, MLP, norms", "combinators*": "residual systems: read and write"},
  {"data*": "text to rows of tokens", "kernels*": "fused reads, writes, attention"},
  {"base": "axis letters, paths, JSON, terminal, chips, mesh and rules, hosts"},
)
# What flows from one room to another, on the right and on the left of the building.
RIGHT = (
  ("", "__main__", "configs/NAME.py,\n--config.KEY=VALUE"),
  ("__main__", "train", "config:\nsettings by name"),
  ("train", "models", "parameters,\ntokens [B, T]"),
  ("models", "combinators", "embedding and\noutputs [B, T, D]"),
  ("combinators", "kernels", "sources or streams\n[N, B, T, D]"),
)
LEFT = (("data", "train", "rows\n[b, T]"),)

_TOP, _ROW, _BOX, _GAP = 44, 54, 46, 8  # pixels: above the building, of a floor, its boxes
_START, _END, _WIDTH = 76, 604, 770  # where the building begins and ends; of the picture
_INK, _FLOW = "#1f2937", "#1d4ed8"


def svg() -> str:
  """Returns the picture."""
  height = _TOP + len(FLOORS) * _ROW + 4
  parts = [f'<rect width="{_WIDTH}" height="{height}" rx="8" fill="white"/>']
  for floor, rooms in enumerate(FLOORS):
    width = (_END - _START - _GAP * (len(rooms) - 1)) / len(rooms)
    for place, (name, what) in enumerate(rooms.items()):
      parts += _room(name, what, _START + place * (width + _GAP), _TOP + floor * _ROW, width)
  for flows, edge, away, anchor in ((RIGHT, _END, 22, "start"), (LEFT, _START, -22, "end")):
    for start, end, what in flows:
      parts += _flow(start, end, what, edge, away, anchor)
  names = ", ".join(name.strip("*") for rooms in FLOORS for name in rooms)
  return (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
    f'font-family="system-ui,sans-serif" font-size="13" role="img" '
    f'aria-label="Rooms of resjax from the top: {names}"><defs><marker id="head" '
    f'viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7" orient="auto">'
    f'<path d="M0,0 L6,3 L0,6 z" fill="{_FLOW}"/></marker></defs>\n'
    + "\n".join(parts)
    + "\n</svg>\n"
  )


def _middle(room):
  """Returns the height of a room's floor."""
  for floor, rooms in enumerate(FLOORS):
    if room in (name.strip("*") for name in rooms):
      return _TOP + floor * _ROW + _BOX // 2
  raise ValueError(f"{room!r} is on no floor")


def _room(name, what, x, y, width):
  fill = "#dbeafe" if name.endswith("*") else "#f8fafc"
  yield (
    f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{_BOX}" rx="6" fill="{fill}" '
    f'stroke="{_INK}"/>'
  )
  yield _text(x + 12, y + 19, name.strip("*"), "start", _INK, ' font-weight="bold"')
  yield _text(x + 12, y + 37, what, "start", _INK)


def _flow(start, end, what, edge, away, anchor):
  """Yields an arrow beside the building, from one floor to another, and what flows."""
  finish = _middle(end)
  begin = _middle(start) if start else 8
  down = 8 if begin < finish else -8  # apart from the arrow that goes on from there
  corner = edge + away
  path = f"M{edge},{begin + down} H{corner}" if start else f"M{corner},{begin}"
  yield (
    f'<path d="{path} V{finish - down} H{edge}" fill="none" stroke="{_FLOW}" stroke-width="1.5" '
    f'marker-end="url(#head)"/>'
  )
  for row, line in enumerate(what.split("\n")):
    yield _text(corner + away * 0.4, (begin + finish) // 2 - 4 + 17 * row, line, anchor, _FLOW)


def _text(x, y, text, anchor, colour, more=""):
  text = html.escape(text)
  return f'<text x="{x:g}" y="{y}" text-anchor="{anchor}" fill="{colour}"{more}>{text}</text>'


if __name__ == "__main__":
  FILE.write_text(svg())
