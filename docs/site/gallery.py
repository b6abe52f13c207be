"""One page for every residual system: what the repository knows of it, put together."""

import inspect
import re

import pictures
from links import DOCS

from resjax import combinators

_FOLDER = DOCS / "generated" / "gallery"
_ROW = re.compile(r"^\|\s*`(\w+)`\s*\|(.*)\|$")
_LOCAL = re.compile(r"\]\((?!https?:)")  # a link between pages of docs/
_INDEX = """# All residual systems

A residual system says what a sublayer reads from the depth state, and how its output is written to
it. Each has a page here; [the comparison](../../systems.md) has all costs and all that is published
side by side. Families say how a system treats the stream.
"""
_PAGE = """# `{name}`

{picture}

Blue parts are new or changed. A site reads {reads}, and leaves {leaves}. Source: {source}.

```sh
resjax train --config=tiny --config.model.residual.name={name}
```

## When to use it

- **For it:** {for_it}
- **Against it, or not shown:** {against}

These rows are from [the comparison of all systems](../../systems.md#before-believing-a-row), which
says how far such figures go.

## What it costs

| beside `standard` | |
|---|---|
| parameters, of a model with 124M | {parameters} ({share}) |
| FLOPs of a forward pass | {flops} |
| memory traffic of a training step, passes over [B, T, D] per sublayer | {passes} ({more}) |

The depth state takes {state} bytes per token, and a training step of the 1.3B decoder {memory} GiB.
[What these figures count](../../systems.md#what-they-cost). At tiny size, after 300 steps, it has
{bits} bits per byte, {difference} against `standard`, with one seed and nothing tuned: it trains,
and this is no ranking ([measurements](../../measurements.md#every-system-at-tiny-size)).

## Equation, options and state

```{{eval-rst}}
.. autoclass:: resjax.combinators.{cls}
   :no-index:
```
"""


def write_pages(app):
  """Writes the pages, their pictures, and the page that lists them by family."""
  _FOLDER.mkdir(parents=True, exist_ok=True)
  for name, text in pages().items():
    (_FOLDER / f"{name}.md").write_text(text)
  (_FOLDER / "index.md").write_text(_INDEX + "".join(map(_family, combinators.FAMILIES[:-1])))


def pages():
  """Returns the text of every system's page by the name of the system."""
  tables = [
    _table(DOCS / "systems.md", "| system | a site reads |"),
    _table(DOCS / "systems.md", "| system | parameters |"),
    _table(DOCS / "systems.md", "| system | for |"),
    _table(DOCS / "measurements.md", "| name | parameters | bits per byte |"),
  ]
  return {name: _page(name, *(table[name] for table in tables)) for name in combinators.names()}


def _page(name, does, costs, evidence, measured):
  reads, leaves, source = does
  parameters, share, state, flops, passes, more, _, memory = costs
  for_it, against = (_LOCAL.sub("](../../", cell) for cell in evidence)
  _, bits, difference, _ = measured
  cls, picture = combinators.get(name).__name__, pictures.svg(name)
  return _PAGE.format(**locals())


def _first_line(name):
  return inspect.getdoc(combinators.get(name)).split("\n\n")[0].replace("\n", " ")


def _family(family):
  names = [name for name in combinators.names() if combinators.get(name).family == family]
  rows = "".join(f"- [`{name}`]({name}.md): {_first_line(name)}\n" for name in names)
  tree = "\n".join(names)
  return f"\n## {family.capitalize()}\n\n{rows}\n```{{toctree}}\n:hidden:\n\n{tree}\n```\n"


def _table(page, header):
  """Returns the rows of all tables of a page that have a header: cells by the name in the first."""
  rows, found = {}, ""
  for line in page.read_text().splitlines():
    if not line.startswith("|"):
      found = ""
    elif not found:
      found = line
    elif found.startswith(header) and (row := _ROW.match(line)):
      rows[row[1]] = [cell.strip() for cell in row[2].split("|")]
  return rows
