"""One page for every residual system: what the repository knows of it, put together."""

import inspect
import json
import re

import pictures
from links import DOCS, ROOT

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
says how far such figures go. {public}

## What it costs

| beside `standard` | |
|---|---|
| parameters, of a model with 124M | {parameters} ({share}) |
| FLOPs of a forward pass | {flops} |
| memory traffic of a training step, passes over [B, T, D] per sublayer | {passes} ({more}) |

The depth state takes {state} bytes per token, and a training step of the 1.3B decoder {memory} GiB.
[What these figures count](../../systems.md#what-they-cost). At tiny size, after 300 steps, it has
{bits} bits per byte, {difference} against `standard`, and {experts} with 8 experts in every layer,
with one seed and nothing tuned: it trains, and this is no ranking
([measurements](../../measurements.md#every-system-at-tiny-size)).

## Equation, options and state

```{{eval-rst}}
.. autoclass:: resjax.combinators.{cls}
   :no-index:
```

## In plain JAX

The whole system as a function. `params` has the parameters of the class under the same names, `x`
[B, T, D] is the embedding, and `branches[i][s]` the pair (norm, f) of site s in layer i, for L
layers with S sites. An attention whose queries, keys and values differ is f(q, k, v).

```{{literalinclude}} ../../systems/plain/{name}.py
:language: python
```

## Where the class does more

{file} computes the same in any model, on top of {others}. It adds:

- **A scan over layers**: {scan}
- **Kernels**: {kernels}
- **Decoding**: {decoding}
- **Dtypes**: what it mixes by is float32 or wider, whatever dtype activations have
  ([numerics.py](../../../resjax/combinators/numerics.py)).
{options}
Its values and gradients are [tested](../../../tests/combinators/plain_test.py) to be those of the
function above, and with every option those of [equations in float64 NumPy]({equations}).
"""
_SCANS = {  # by the strategy of the class
  "carry": (
    "the state has a fixed shape, so that `lax.scan` carries it and hands each layer its rows of"
    " the parameters ([depth.py](../../../resjax/models/depth.py))."
  ),
  "history": (
    "layers append to one bank of sources, which a loop with a reverse pass of its own keeps once"
    " ([block_loop.py](../../../resjax/models/block_loop.py))."
  ),
  "depth_blocks": (
    "an outer loop opens and closes blocks, an inner one runs their layers; both share one reverse"
    " pass, which keeps the bank of sources once"
    " ([block_loop.py](../../../resjax/models/block_loop.py))."
  ),
}
_KERNELS = {  # packages of resjax/kernels/, and the systems that read by them
  "depth_attention": (
    "attn_res", "block_attn_res", "delta_attn_res", "delta_block_attn_res", "multi_gate",
  ),
  "streams": ("hyper_connections", "mhc", "mhc_lite", "independent_hc", "wide_residual"),
  "gated_streams": ("gated_residual",),
}  # fmt: skip
_KERNEL = (
  "a read is one pass over the state on TPUs and GPUs"
  " ([kernels/{0}](../../../resjax/kernels/{0}/api.py), its equations in plain JAX beside them)."
)
_FUSED = " The norm of the branch is part of it (`read_normed`)."
_NO_KERNEL = "none. Where that saves memory, the reverse pass computes reads and writes again."
_MIXES_TOKENS = (
  "it mixes tokens, unless an option turns that off: `decode_cache` and `next_cache` hand on what"
  " later tokens need of earlier ones."
)
_MIXES_NO_TOKENS = (
  "no token sees another one in it, so that it keeps nothing between them; what attention keeps is"
  " in [decode_cache.py](../../../resjax/models/decode_cache.py)."
)
_OPTIONS = "- **Options** that the function leaves out: {}.\n"
_LEFT_OUT = re.compile(r"Left out: ([\w,\s]+)\.")


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
  _, bits, difference, experts, _ = measured
  cls, picture = combinators.get(name).__name__, pictures.svg(name)
  return _PAGE.format(**locals(), **_more(name, combinators.get(name)))


def _more(name, cls):
  """Returns what a class adds to its plain form, by the place where the page says it."""
  bases = [base for base in cls.__mro__ if base.__module__.startswith("resjax.")]
  own, *others = dict.fromkeys(base.__module__ for base in bases)
  kernels = [package for package, systems in _KERNELS.items() if name in systems]
  fused = cls.read_normed is not combinators.Combinator.read_normed
  mixes_tokens = cls.decode_cache is not combinators.Combinator.decode_cache
  plain = (DOCS / "systems" / "plain" / f"{name}.py").read_text()
  left_out = _LEFT_OUT.search(plain)
  families = (ROOT / "tests" / "helpers" / "systems").glob("*.py")
  (equations,) = (path for path in families if f"\ndef {name}(" in path.read_text())
  return {
    "public": _public(name),
    "file": _module_link(own),
    "others": ", ".join(map(_module_link, others)),
    "scan": _SCANS[cls.strategy],
    "kernels": _KERNEL.format(kernels[0]) + _FUSED * fused if kernels else _NO_KERNEL,
    "decoding": _MIXES_TOKENS if mixes_tokens else _MIXES_NO_TOKENS,
    "options": _OPTIONS.format(" ".join(left_out[1].split())) if left_out else "",
    "equations": f"../../../{equations.relative_to(ROOT)}",
  }


def _public(name):
  """Returns which public comparisons have a system, with a link to their tables."""
  studies = json.loads((DOCS / "systems" / "public.json").read_text()).values()
  found = [s["title"].split(",")[0] for s in studies if name in [r["system"] for r in s["rows"]]]
  link = "[public comparisons](../../systems.md#two-public-comparisons)"
  return f"Of two {link} it is in {' and '.join(found) or 'neither'}."


def _module_link(module):
  path = module.replace(".", "/") + ".py"
  return f"[{path.removeprefix('resjax/combinators/')}](../../../{path})"


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
