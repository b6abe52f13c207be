"""A run that starts from the parameters of another one, also under another combinator."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from resjax.locations import Location
from resjax.models.model_def import ModelDef
from resjax.runs import workdir
from resjax.runs.config import Run
from resjax.runs.parents import KNOB, Parent, Shapes, flat, nested
from resjax.typing import PyTree

_RESIDUAL = "config.model.residual."
_NEW_SITE = "config.model.short_swa was {'window': 0,"
_ONLY_AT_INIT = ("config.model.init_std", "config.model.scaled_output_init")


@dataclasses.dataclass(frozen=True)
class Inheritance:
  """Which parameter comes from where.

  Attributes:
    taken: path of a parameter to its path in the parent.
    new: path to shape of those that the parent has not.
  """

  taken: Mapping[str, str]
  new: Shapes


def start(
  parent: Parent, model: ModelDef, seed: int, tokenizer: Location
) -> tuple[PyTree, Inheritance]:
  """Returns a model's first parameters, read straight to where they lie, and their origin.

  Args:
    parent: of `parents.find`.
    model: to start.
    seed: of the initial values of new parameters.
    tokenizer: file of the model's data.

  Raises:
    ValueError: the parent has another tokenizer, or its parameters do not fit.
  """
  if parent.tokenizer() != tokenizer.read_text():
    raise ValueError(
      f"{KNOB}: the tokenizer of {parent.source} is not that of this run; set config.data.corpora "
      "and config.data.tokenizer as they are there, or take configs/finetune.py"
    )
  wanted = flat(model.abstract)
  shapes = {path: leaf.shape for path, leaf in wanted.items()}
  inheritance = match(parent.shapes(model.config), shapes)
  abstract = {theirs: wanted[ours] for ours, theirs in inheritance.taken.items()}
  found = parent.read(abstract, model.layout)
  params, used = flat(model.init(seed, inheritance.new)), set()
  for ours, theirs in inheritance.taken.items():
    # A step donates its parameters: no two of them may be one array.
    params[ours] = found[theirs].copy() if theirs in used else found[theirs]
    used.add(theirs)
  return nested(params), inheritance


def match(theirs: Shapes, ours: Shapes) -> Inheritance:
  """Matches a model's parameters with those of its parent, by path.

  The pre-norm of a view, layers/norms/SITE/q|k|v/..., comes from that of x where the parent has no
  other.

  Args:
    theirs: path to shape, of the parent.
    ours: the same, of the model.

  Raises:
    ValueError: a shape differs, or a parameter of the parent has no place.
  """
  sources = {path: path if path in theirs else _x_norm(path) for path in ours}
  taken = {path: source for path, source in sources.items() if source in theirs}
  wrong = [
    f"{source} is {theirs[source]} there and {path} is {ours[path]} here"
    for path, source in taken.items()
    if theirs[source] != ours[path]
  ]
  wrong += [f"{path} has no place here" for path in theirs if path not in set(taken.values())]
  if wrong:
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    raise ValueError(
      f"{KNOB}: the parameters do not fit: {'; '.join(wrong[:3])}{more}; set "
      "config.model as it is there, or start from a run with residual.name=standard"
    )
  return Inheritance(taken, {path: shape for path, shape in ours.items() if path not in taken})


def changes(parent: Parent, model: ModelDef, run: Run) -> list[str]:
  """Returns why a model is not the function that its parent is, a line per reason; none: it is.

  Args:
    parent: of `parents.find`.
    model: started from it.
    run: of the model.

  Raises:
    ValueError: the record of the parent's run is damaged.
  """
  old, new = parent.identity(run.decoder), workdir.model_identity(run.decoder)
  reasons = workdir.differences(_select(old, _is_function), _select(new, _is_function))
  was, name = old.get(f"{_RESIDUAL}name"), run.decoder.residual.name
  neutral = was == "standard" and model.combinator.equals_standard_at_init
  if neutral and run.decoder.short_swa.zero_init:  # a new site that adds zero
    reasons = [reason for reason in reasons if not reason.startswith(_NEW_SITE)]
  if not neutral and _select(old, _is_residual) != _select(new, _is_residual):
    reasons.append(f"{name!r} with these options is not what {was!r} with its options is")
  return reasons


def _select(identity: Mapping[str, Any], chosen: Callable[[str], bool]) -> dict[str, Any]:
  return {key: value for key, value in identity.items() if chosen(key)}


def _is_residual(key: str) -> bool:
  return key.startswith(_RESIDUAL)


def _is_function(key: str) -> bool:
  """Whether a setting, those of combinators left out, decides what a trained model computes."""
  return key.startswith("config.model.") and not _is_residual(key) and key not in _ONLY_AT_INIT


def _x_norm(path: str) -> str:
  parts = path.split("/")
  if parts[:2] == ["layers", "norms"] and parts[3] in ("q", "k", "v"):
    parts[3] = "x"
  return "/".join(parts)
