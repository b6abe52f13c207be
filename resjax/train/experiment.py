"""Makes a run of a config: the one place where settings become objects."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from resjax import combinators
from resjax.base import ranges
from resjax.base.sharding import Layout, MeshConfig, Rules, ShardingConfig, make_layout
from resjax.data import DOCUMENTS, MARKUP, DataConfig
from resjax.interop import huggingface
from resjax.models import DecoderConfig, ResidualConfig, check_norm_gate
from resjax.train import optim
from resjax.train.checkpoint.config import CheckpointConfig
from resjax.train.runs import divisibility, parents, workdir
from resjax.train.runs.config import HealthConfig, Run, TrainConfig

_TOP = ("workdir", "seed", "init_seed")
_SECTIONS = ("model", "data", "optim", "train", "health", "checkpoint", "mesh", "sharding")
# Settings that decide how their section is read.
_NEEDED = {
  "model": ("residual", "dtype"),
  "data": ("tokenizer",),
  "train": ("init_from",),
  "sharding": ("name",),
}


def build(
  config: Mapping[str, Any] | ConfigDict, devices: Sequence[jax.Device] | None = None
) -> Run:
  """Returns the run that a config describes, after every check that needs no data.

  Its vocabulary is the largest that its tokenizer may have, because a small corpus may give fewer
  tokens; `Run.with_vocab_size` says what the data turned out to have.

  Args:
    config: the sections and keys of configs/base.py; a ConfigDict or its plain form.
    devices: the devices that the run is for, which may be descriptions of absent ones; default:
      all devices of all processes.

  Raises:
    ValueError: a setting is unknown, missing or out of range, or does not fit the devices.
  """
  given = ranges.plain(config.to_dict() if isinstance(config, ConfigDict) else config)
  _check_sections(given)
  given = _filled(_with_system(given))
  values = _with_documents(given, {"documents": DOCUMENTS[0], "markup": MARKUP[0]})
  mesh = ranges.read(MeshConfig, values["mesh"], "config.mesh")
  run = _run(values, make_layout(mesh, _sharding(values["sharding"]), devices))
  _check(run)
  return run


def data_config(config: ConfigDict) -> DataConfig:
  """Returns the data that a config describes; its other sections may be wrong.

  Raises:
    ValueError: a setting is unknown, missing or out of range.
  """
  values = _mapping(config.to_dict().get("data"), "config.data")
  return ranges.read(DataConfig, values, "config.data")


def load(folder: str, layout: Layout | None = None) -> Run:
  """Returns the run whose record lies in a workdir.

  Args:
    folder: the workdir.
    layout: where its arrays go; default: all devices, by the rules that the run was trained with.

  Raises:
    ValueError: the folder holds no run, or its record has settings that no run can have.
  """
  place = workdir.place(folder)
  # Records of earlier runs have no init_seed.
  given = {"init_seed": ranges.AS_SEED, **workdir.read(place).config, "workdir": folder}
  try:
    _check_sections(given)
    values = _with_documents(_filled(given), workdir.BEFORE_DOCUMENTS)
    values["model"] = {**values["model"], "attention": "auto"}
    return _run(values, layout or make_layout(MeshConfig(), _sharding(values["sharding"])))
  except ValueError as error:
    raise ValueError(f"{place / workdir.RECORD}: {error}") from None


def _check_sections(values: Mapping[str, Any]) -> None:
  """Raises ValueError unless a config has all its sections, and nothing beside them."""
  names = *_TOP, *_SECTIONS
  ranges.check_keys(values, names, names, "config")
  for section in _SECTIONS:
    found = _mapping(values[section], f"config.{section}")
    for key in _NEEDED.get(section, ()):
      if key not in found:
        raise ValueError(f"config.{section}.{key} is missing")
  _mapping(values["data"]["tokenizer"], "config.data.tokenizer")
  name = _mapping(values["model"]["residual"], "config.model.residual").get("name")
  if not isinstance(name, str):
    raise ValueError(f"config.model.residual.name={name!r} must be the name of a combinator")
  ranges.check_type(values["train"]["init_from"], str, "config.train.init_from")


def _with_system(given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a user's own config with all options of its combinator, and of no other one.

  Raises:
    ValueError: there is no such combinator, or it cannot be imported; or a section belongs to none.
  """
  residual = given["model"]["residual"]
  name = residual["name"]
  try:
    usual = combinators.settings(name)
  except ValueError as error:
    raise ValueError(f"config.model.residual.name: {error}") from None
  for key in residual:
    if key != "name":
      combinators.check_section(key)
  section = combinators.section(name)
  own = _mapping(residual.get(section, {}), f"config.model.residual.{section}")
  residual = {"name": name, section: {**usual, **own}}
  return {**given, "model": {**given["model"], "residual": residual}}


def _mapping(value: Any, path: str) -> Mapping[str, Any]:
  if not isinstance(value, Mapping):
    raise ValueError(f"{path}={value!r} must be a section of settings, see configs/base.py")
  return value


def _run(values: Mapping[str, Any], layout: Layout) -> Run:
  data = ranges.read(DataConfig, values["data"], "config.data")
  decoder = _decoder(values["model"], data, layout)
  return Run(
    workdir=values["workdir"],
    seed=values["seed"],
    init_seed=values["init_seed"],
    decoder=decoder,
    data=data,
    optim=ranges.read(optim.OptimizerConfig, values["optim"], "config.optim"),
    train=ranges.read(TrainConfig, values["train"], "config.train"),
    health=ranges.read(HealthConfig, values["health"], "config.health"),
    checkpoint=ranges.read(CheckpointConfig, values["checkpoint"], "config.checkpoint"),
    layout=layout,
    resolved={**values, "model": {**values["model"], "dtype": decoder.dtype}},
  )


def _with_documents(values: dict[str, Any], missing: Mapping[str, str]) -> dict[str, Any]:
  """Returns a config with what its tokenizer does not say about documents.

  A config of one's own, or that of a run of an earlier release, may not have these settings.
  """
  data = values["data"]
  return {**values, "data": {**data, "tokenizer": {**missing, **data["tokenizer"]}}}


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the config with the settings of the pretrained model where it has None.

  Only model and tokenizer may have None.
  """
  model, tokenizer = values["model"], values["data"]["tokenizer"]
  open_settings = [f"config.model.{key}" for key in _none(model)]
  open_settings += [f"config.data.tokenizer.{key}" for key in _none(tokenizer)]
  folder = values["train"]["init_from"]
  if not open_settings:
    return dict(values)
  if not parents.is_huggingface(folder):
    raise ValueError(
      f"{open_settings[0]} is not set, and config.train.init_from={folder!r} is no Hugging Face "
      "folder, GGUF file or OWNER/NAME of the hub, which would have it; set one of them"
    )
  ignored = ranges.read(TrainConfig, values["train"], "config.train").hf_ignore
  theirs = dataclasses.asdict(huggingface.read_config(folder, ignore=ignored))
  data = {**values["data"], "tokenizer": _with_values(tokenizer, theirs)}
  return {**values, "model": _with_values(model, theirs), "data": data}


def _none(values: Mapping[str, Any]) -> list[str]:
  """Returns the paths of all settings that are None."""
  inside = {key: value for key, value in values.items() if isinstance(value, Mapping)}
  return [key for key, value in values.items() if value is None] + [
    f"{key}.{inner}" for key, value in inside.items() for inner in _none(value)
  ]


def _with_values(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the settings with the given values where they are None."""
  found = {key: given[key] if value is None else value for key, value in values.items()}
  for key, value in values.items():
    if isinstance(value, Mapping) and _none(value):
      found[key] = _with_values(value, given[key])
  return found


def _sharding(values: Mapping[str, Any]) -> ShardingConfig:
  sets = {key: rules for key, rules in values.items() if key != "name"}
  name = values["name"]
  if not isinstance(name, str) or name not in sets:
    hint = ranges.hint(name, sets)
    raise ValueError(f"config.sharding.name={name!r} is no set of rules; {hint}")
  path = f"config.sharding.{name}"
  return ShardingConfig(name, ranges.read(Rules, _mapping(sets[name], path), path))


def _decoder(values: Mapping[str, Any], data: DataConfig, layout: Layout) -> DecoderConfig:
  values = dict(values)
  residual = values.pop("residual")
  try:
    combinators.get(residual["name"])
  except ValueError as error:
    raise ValueError(f"config.model.residual.name: {error}") from None
  if values["dtype"] == "auto":
    values["dtype"] = "float32" if layout.platform == "cpu" else "bfloat16"
  values["vocab_size"] = data.tokenizer.vocab_limit
  values["max_positions"] = data.seq_len
  name = residual["name"]
  section = combinators.section(name)
  options = _mapping(residual.get(section), f"config.model.residual.{section}")
  values["residual"] = ResidualConfig(name, options)
  return ranges.read(DecoderConfig, values, "config.model")


def _check(run: Run) -> None:
  """Raises ValueError for mistakes that would otherwise be found minutes later."""
  combinator = _abstract_combinator(run.decoder)
  check_norm_gate(run.decoder, combinator)
  parameters = nnx.to_flat_state(nnx.state(combinator, nnx.Param)).paths
  optim.check_combinator_factors(run.optim, ["/".join(map(str, path)) for path in parameters])
  optim.schedule(run.optim, run.train.steps)
  if "validation" not in run.data.splits:
    raise ValueError(
      f"config.data.validation_fraction={run.data.validation_fraction} leaves nothing to evaluate "
      "on; set it above 0"
    )
  divisibility.check(run)


def _abstract_combinator(decoder: DecoderConfig) -> combinators.Combinator:
  """Returns the combinator of a decoder with shapes for parameters."""
  name = decoder.residual.name
  sizes = {"num_layers": decoder.num_layers, "d_model": decoder.d_model, "sites": decoder.sites}
  arguments: dict[str, Any] = {**sizes, **decoder.residual.options}
  try:
    made: combinators.Combinator = nnx.eval_shape(
      lambda: combinators.build(name, rngs=nnx.Rngs(0), scaled_init=True, **arguments)
    )
  except ValueError as error:
    raise ValueError(f"config.model.residual.{combinators.section(name)}: {error}") from None
  return made
