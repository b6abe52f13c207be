"""The start of a run from the parameters of a trained model, also under another combinator."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from resjax.base import Array, Location, PyTree
from resjax.combinators import OUTPUT, Combinator
from resjax.data import same_vocabulary
from resjax.models import DecoderConfig, DepthValuesConfig, ModelDef, ValueGateConfig
from resjax.train.runs import workdir
from resjax.train.runs.config import Run
from resjax.train.runs.parents import SETTING, Parent, Shapes, flat, nested

_RESIDUAL = "config.model.residual."
_NEW_SITE = "config.model.short_swa was {'window': 0,"
_NEW_GATE = "config.model.norm_gate was None "
_ONLY_AT_INIT = ("config.model.init_std", "config.model.scaled_output_init")


@dataclasses.dataclass(frozen=True)
class Inheritance:
  """Where each parameter of a model comes from.

  Attributes:
    taken: by path, the path in the parent of each parameter that is taken over.
    new: by path, the shape of each parameter that the parent does not have.
    norms: by site, and by OUTPUT, the path in the parent of the gain of a norm that the combinator
      takes the place of, see `Combinator.from_norms`.
  """

  taken: Mapping[str, str]
  new: Shapes
  norms: Mapping[str, str] = dataclasses.field(default_factory=dict)


def start(
  parent: Parent, model: ModelDef, seed: int, tokenizer: Location
) -> tuple[PyTree, Inheritance]:
  """Returns the first parameters of a model, read straight to their devices, and their origin.

  Args:
    parent: the model to start from.
    model: the model that is started.
    seed: the seed of the initial values of new parameters.
    tokenizer: the tokenizer file of the data.

  Raises:
    ValueError: the parent has another tokenizer, or its parameters do not fit.
  """
  if not same_vocabulary(parent.tokenizer(), tokenizer.read_text()):
    raise ValueError(
      f"{SETTING}: the tokenizer of {parent.source} is not that of this run; set "
      "config.data.corpora and config.data.tokenizer as they are there, or take configs/finetune.py"
    )
  wanted, theirs = flat(model.abstract), parent.shapes(model.config)
  inheritance, gains, made = _inherited(theirs, model)
  norms, from_norms = inheritance.norms, partial(_from_norms, model.combinator)
  abstract = {theirs: wanted[ours] for ours, theirs in inheritance.taken.items()}
  abstract |= {path: gains[place] for place, path in norms.items()}
  found = parent.read(abstract, model.layout)
  params, used = flat(model.init(seed, inheritance.new)), set()
  for ours_path, theirs_path in inheritance.taken.items():
    # A training step donates its parameters, so no two of them may be the same array.
    value = found[theirs_path]
    params[ours_path] = value.copy() if theirs_path in used else value
    used.add(theirs_path)
  shardings = {path: wanted[path].sharding for path in made}
  params |= jax.jit(from_norms, out_shardings=shardings)({p: found[norms[p]] for p in norms})
  return nested(params), inheritance


def check(parent: Parent, run: Run) -> None:
  """Checks before the data of a run are built that the parameters of its parent fit.

  The vocabulary, which the data decide, is the parent's here; `start` compares the tokenizers.

  Raises:
    ValueError: they do not fit.
  """
  theirs = parent.shapes(run.decoder)
  vocab_size = theirs.get("embed/embedding", (run.decoder.vocab_size,))[0]
  model = ModelDef(dataclasses.replace(run.decoder, vocab_size=vocab_size), run.layout)
  _inherited(theirs, model)


def _inherited(
  theirs: Shapes, model: ModelDef
) -> tuple[Inheritance, dict[str, jax.ShapeDtypeStruct], Mapping[str, Any]]:
  """Matches a model with its parent.

  Besides returns, without values, the gains of the parent's norms by place, and the parameters that
  come from them by path.
  """
  norms, everywhere = _norms(theirs, model), model.layout.everywhere
  gains = {
    place: jax.ShapeDtypeStruct(theirs[path], jnp.float32, sharding=everywhere)
    for place, path in norms.items()
  }
  made = jax.eval_shape(partial(_from_norms, model.combinator), gains)
  ours = {path: leaf.shape for path, leaf in flat(model.abstract).items() if path not in made}
  return match(theirs, ours, norms if made else {}), gains, made


def _norms(theirs: Shapes, model: ModelDef) -> dict[str, str]:
  """Returns the paths of the parent's RMS norm gains that a combinator replaces.

  Keys are sites, and OUTPUT for the final norm. There are none if the combinator replaces the final
  norm and the parent has none: then its own combinator replaced it.
  """
  if model.config.norm != "rmsnorm":
    return {}
  replaced, paths = model.combinator, {}
  if not replaced.pre_norm:
    paths = {site: f"layers/norms/{site}/x/scale" for site in replaced.sites}
  if not replaced.final_norm:
    paths[OUTPUT] = "final_norm/scale"
  found = {place: path for place, path in paths.items() if path in theirs}
  return found if replaced.final_norm or OUTPUT in found else {}


def _from_norms(combinator: Combinator, gains: Mapping[str, Array]) -> dict[str, Array]:
  found = combinator.from_norms(gains) if gains else {}
  return {f"combinator/{name}": value for name, value in found.items()}


def match(theirs: Shapes, ours: Shapes, norms: Mapping[str, str] | None = None) -> Inheritance:
  """Matches the parameters of a model with its parent's, by path.

  The pre-norm of a view, layers/norms/SITE/q|k|v/..., is taken from that of x where the parent does
  not have it.

  Args:
    theirs: the shapes of the parent's parameters, by path.
    ours: the shapes of the model's parameters, by path.
    norms: see `Inheritance`; default: none.

  Raises:
    ValueError: a shape differs, or the model has no place for a parameter of the parent.
  """
  sources = {path: path if path in theirs else _x_norm(path) for path in ours}
  taken = {path: source for path, source in sources.items() if source in theirs}
  wrong = [
    f"{source} is {theirs[source]} there and {path} is {ours[path]} here"
    for path, source in taken.items()
    if theirs[source] != ours[path]
  ]
  norms = norms or {}
  placed = {*taken.values(), *norms.values()}
  wrong += [f"{path} has no place here" for path in theirs if path not in placed]
  if wrong:
    more = f"; and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    raise ValueError(
      f"{SETTING}: the parameters do not fit: {'; '.join(wrong[:3])}{more}; set "
      "config.model as it is there, or start from a run with residual.name=standard"
    )
  new = {path: shape for path, shape in ours.items() if path not in taken}
  return Inheritance(taken, new, norms)


def changes(parent: Parent, model: ModelDef, run: Run) -> list[str]:
  """Returns the reasons why a model does not compute what its parent computes, a line for each.

  Args:
    parent: the model that was started from.
    model: the model that was started.
    run: the run of the latter.

  Raises:
    ValueError: the record of the parent's run is damaged.
  """
  old = parent.identity(run.decoder)
  new = workdir.model_identity(_without_idle_values(run.decoder, old))
  reasons = workdir.differences(_select(old, _is_function), _select(new, _is_function))
  was, name = old.get(f"{_RESIDUAL}name"), run.decoder.residual.name
  fresh = model.combinator
  is_neutral = fresh.equals_standard_at_init and (run.decoder.pre_norm or not fresh.needs_pre_norms)
  if fresh.equals_standard_from_norms and _norms(parent.shapes(run.decoder), model):
    is_neutral = True
  neutral = was == "standard" and is_neutral
  if neutral and run.decoder.short_swa.zero_init:  # a new site adds zero at first
    reasons = [reason for reason in reasons if not reason.startswith(_NEW_SITE)]
  if run.decoder.norm_gate.form == "neutral":  # a new gate is one at first
    reasons = [reason for reason in reasons if not reason.startswith(_NEW_GATE)]
  if not neutral and _select(old, _is_residual) != _select(new, _is_residual):
    reasons.append(f"{name!r} with these options is not what {was!r} with its options is")
  return reasons


def _without_idle_values(decoder: DecoderConfig, old: Mapping[str, Any]) -> DecoderConfig:
  """Returns a decoder without the ways to mix values that its parent lacks and that start at 0."""
  without: dict[str, Any] = {}
  if old.get("config.model.value_residual") == "none" and decoder.value_gate.starts_shut:
    without |= {"value_residual": "none", "value_gate": ValueGateConfig()}
  if "config.model.value_mixing" not in old and decoder.depth_values.zero_init:
    without |= {"value_mixing": "none", "depth_values": DepthValuesConfig()}
  return dataclasses.replace(decoder, **without)


def _select(identity: Mapping[str, Any], chosen: Callable[[str], bool]) -> dict[str, Any]:
  return {key: value for key, value in identity.items() if chosen(key)}


def _is_residual(key: str) -> bool:
  return key.startswith(_RESIDUAL)


def _is_function(key: str) -> bool:
  """Returns whether a setting of the model, but not of its combinator, changes its outputs."""
  return key.startswith("config.model.") and not _is_residual(key) and key not in _ONLY_AT_INIT


def _x_norm(path: str) -> str:
  """Returns the path of x's pre-norm for the pre-norm of q, k or v; other paths unchanged."""
  parts = path.split("/")
  if parts[:2] == ["layers", "norms"] and parts[3] in ("q", "k", "v"):
    parts[3] = "x"
  return "/".join(parts)
