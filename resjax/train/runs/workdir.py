"""The folder of a run, and its file `run.json`, the record of what the run is."""

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec
from absl import logging

from resjax import combinators
from resjax.base import AS_SEED, Location, locations, typed_json
from resjax.data import DOCUMENTS, MARKUP, DatasetSummary, TextDigest
from resjax.models import DecoderConfig
from resjax.nn import RopeScaling
from resjax.train.checkpoint import reader
from resjax.train.checkpoint.identity import RunId
from resjax.train.checkpoint.place import absolute
from resjax.train.runs import environment, history, run_text
from resjax.train.runs.config import Run
from resjax.train.runs.environment import Environment
from resjax.train.runs.history import Part

RECORD = "run.json"
LOCK = ".lock"  # is held by the process that trains in the folder
TOKENIZER = "tokenizer.json"
# Settings of how a step is computed, not of what it computes: a resumed run may change them.
_FREE_MODEL_FIELDS = ("attention", "depth", "remat")
# Settings of config.model.rope_scaling that records of earlier runs do not have.
_LATER_SCALING = (
  "beta_fast", "beta_slow", "truncate", "attention_factor", "short_factors", "long_factors",
)  # fmt: skip

# What records of earlier runs do not have.
BEFORE_DOCUMENTS = {"documents": "", "markup": MARKUP[0]}

_SYSTEM = "config.model.residual.name"

_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclasses.dataclass(frozen=True)
class Costs:
  """What the model of a run costs; None where the record does not say.

  Attributes:
    parameters: the number of its parameters.
    active_parameters: how many of them a token goes through; fewer in a mixture of experts.
    state_bytes_per_token: the size of its depth state after the last layer.
    training_flops_per_token: the floating-point operations of training per token.
  """

  parameters: _Count | None = None
  active_parameters: _Count | None = None
  state_bytes_per_token: _Count | None = None
  training_flops_per_token: Annotated[float, msgspec.Meta(ge=0)] | None = None


@dataclasses.dataclass(frozen=True)
class Lineage:
  """The identity of a run: its name and its parent.

  Attributes:
    run: the random name that it got at its first start.
    parent: the origin of its first parameters, see `resjax.train.checkpoint.identity.Identity`.
  """

  run: RunId
  parent: dict[str, str | int | None] | None = None


@dataclasses.dataclass(frozen=True)
class Record:
  """What `run.json` says of a run.

  Attributes:
    config: the resolved config of its last steps, whose sections `resjax.train.experiment` checks.
    identity: the settings that decide the parameters and the order of the data, see `identity`.
    data_fingerprint: the name of the data that were built for it.
    costs: what its model costs.
    environment: what its last steps were computed by.
    lineage: who the run is; None in records of runs from before they had names.
    history: its parts, with those settings alone in which they differ; None in records of earlier
      runs, whose last start says what held.
  """

  config: dict[str, Any]
  identity: dict[str, Any]
  data_fingerprint: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z_-]+$")]
  costs: Costs
  environment: Environment = dataclasses.field(default_factory=Environment)
  lineage: Lineage | None = None
  history: list[Part] | None = None

  @property
  def parts(self) -> list[Part]:
    """The parts of the run in order, each with all its settings; none before its first step."""
    if self.history is None:
      return [Part(1, history.settings(self.config), self.environment)]
    return history.whole(self.history, self.config)


class _Corpus(msgspec.Struct):
  """A corpus in an identity."""

  weight: float


class _Places(msgspec.Struct):
  """The settings of an identity that hold the places of texts and tokenizer, beside other ones."""

  corpora: list[tuple[str, _Corpus]] = msgspec.field(
    name="config.data.corpora", default_factory=list
  )
  tokenizer: dict[str, Any] = msgspec.field(name="config.data.tokenizer", default_factory=dict)


def place(path: str) -> Location:
  """Returns the location of the folder of a run, local or on gs://.

  Raises:
    ValueError: the path is neither, or a package that gs:// needs is not installed.
  """
  return locations.path(path, "config.workdir", writable=True)


def create(path: str) -> Location:
  """Makes the folder of a run and proves that files can be written there.

  Raises:
    ValueError: no file can be written there, or no checkpoint can be kept there.
  """
  folder = place(path)
  absolute(folder)
  locations.make_folder(folder, "config.workdir")
  if locations.is_local(folder):
    locations.make_folder(folder / "checkpoints", "config.workdir")
  return folder


@contextlib.contextmanager
def lock(folder: Location) -> Iterator[None]:
  """Keeps other trainers out of a folder, until the context is left or the process dies.

  An object store has no lock that a dead process would release. There, the earlier one of two
  processes notices at its next checkpoint that another one writes the records, and ends. Where a
  file system has no locks either, a line says that nothing keeps others out.

  Raises:
    ValueError: another process trains in the folder.
  """
  if not locations.is_local(folder):
    yield
    return
  with locations.open_lock(folder / LOCK) as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(
        f"another process trains in {folder}; wait for it, or choose another config.workdir"
      ) from None
    except OSError as error:  # such as ENOSYS of Lustre without its option `flock`
      logging.warning(
        "%s cannot be locked (%s): let one process train there at a time", folder, error
      )
    yield


def check(folder: Location, run: Run) -> None:
  """Checks before data are built that a folder holds no run with other settings.

  Raises:
    ValueError: the folder holds a run with other parameters or another order of the data.
  """
  old = begun(folder)
  if old is None:
    return
  name = run.decoder.residual.name
  section = _SYSTEM.removesuffix("name") + combinators.section(name)
  usual = {f"{section}.{key}": value for key, value in combinators.settings(name).items()}
  try:  # A record may lack options that have their defaults.
    before = json.loads(json.dumps(usual)) | _decisive(old.identity)
  except msgspec.ValidationError as error:
    raise ValueError(
      f"{folder / RECORD} is damaged: identity: {error}; restore it, or delete the folder"
    ) from None
  changed = differences(before, _decisive(identity(run)))
  if changed:
    raise ValueError(
      f"{folder} holds another run: {'; '.join(changed)}; "
      "choose another config.workdir, or delete that folder"
    )


def check_data(
  folder: Location, run: Run, fingerprint: str, texts: Mapping[str, TextDigest]
) -> None:
  """Checks before data are built that a folder holds no run with other data; see `dataset.Check`.

  Rows of releases without manifests are compared with those that are built, by `check_rows`.

  Raises:
    ValueError: the folder holds a run with other data.
  """
  old = begun(folder)
  if old is None or old.data_fingerprint == fingerprint:
    return
  if not run_text.have_no_manifest(run.data, old.data_fingerprint):
    raise ValueError(_other_data(folder, run, old, texts))


def check_rows(folder: Location, run: Run, dataset: DatasetSummary) -> None:
  """Checks that built data have the same rows as the run in a folder.

  Raises:
    ValueError: the folder holds a run with other rows.
  """
  old = begun(folder)
  if old is None or old.data_fingerprint == dataset.fingerprint:
    return
  if not run_text.are_rows_of(run.data, old.data_fingerprint, dataset):
    raise ValueError(_other_data(folder, run, old, run_text.texts_of(dataset)))


def _other_data(
  folder: Location, run: Run, old: Record, texts: Mapping[str, TextDigest | None]
) -> str:
  return (
    f"{folder} holds another run: {run_text.explain(folder, run.data, texts)}; "
    f"{run_text.advice(folder, run.data, old.data_fingerprint)}"
  )


def as_begun(run: Run) -> Run:
  """Returns a run whose texts become documents in the way of the run that its folder holds.

  That run may be from a release without `config.data.tokenizer.documents`, which had other
  defaults. A setting other than today's default is kept.

  Raises:
    ValueError: the record of the folder is damaged.
  """
  folder = place(run.workdir)
  if run.data.tokenizer.documents != DOCUMENTS[0] or not (folder / RECORD).exists():
    return run
  before = read(folder).config.get("data", {}).get("tokenizer", {})
  if not before or "documents" in before:
    return run
  documents, markup = BEFORE_DOCUMENTS.values()
  tokenizer = dataclasses.replace(run.data.tokenizer, documents=documents, markup=markup)
  resolved = {**run.resolved, "data": {**run.resolved["data"]}}
  resolved["data"]["tokenizer"] = {**resolved["data"]["tokenizer"], **BEFORE_DOCUMENTS}
  data = dataclasses.replace(run.data, tokenizer=tokenizer)
  return dataclasses.replace(run, data=data, resolved=resolved)


def _decisive(found: Mapping[str, Any]) -> dict[str, Any]:
  """Returns an identity without the paths of texts and tokenizer, whose digests it has."""
  data = msgspec.convert(found, _Places)
  weights = {f"config.data.corpora.{name}.weight": corpus.weight for name, corpus in data.corpora}
  tokenizer = {key: value for key, value in data.tokenizer.items() if key != "folder"}
  tokenizer = tokenizer and BEFORE_DOCUMENTS | tokenizer
  others = {key: value for key, value in found.items() if key != "config.data.corpora"}
  # Records of earlier runs have one seed.
  seeds = dict.fromkeys(("config.init_seed", "config.data.order_seed"), AS_SEED)
  return seeds | others | weights | ({"config.data.tokenizer": tokenizer} if tokenizer else {})


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
  """Returns a line for each setting in which two identities differ.

  The options of different residual systems are not compared.
  """
  changed = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key)]
  if _SYSTEM in changed:
    options = _SYSTEM.removesuffix("name")
    changed = [key for key in changed if key == _SYSTEM or not key.startswith(options)]
  return [f"{key} was {old.get(key)!r} and is {new.get(key)!r}" for key in changed]


def write(
  folder: Location,
  run: Run,
  dataset: DatasetSummary,
  costs: Mapping[str, float],
  lineage: Mapping[str, Any] | None = None,
  *,
  after: int | None = 0,
) -> None:
  """Writes the record of a run, the digests of its documents, and a copy of the tokenizer.

  Args:
    folder: the folder of the run.
    run: the run.
    dataset: the data that were built for it.
    costs: what its model costs, see `resjax.train.run_tables.model_costs`.
    lineage: the random name of the run and its parent, see `resjax.train.runs.lineage.record`;
      None: the run has no checkpoints.
    after: the step behind which the settings of the run hold. Steps behind it that were trained
      earlier are dropped from the record: no checkpoint has them. None: no step was trained yet.
  """
  now, parts = environment.current(), list[Part]()
  if after is not None:
    old = begun(folder)
    part = Part(after + 1, history.settings(run.resolved), now)
    parts = history.continued(old.parts if old else [], part)
  content = {
    "lineage": lineage,
    "config": run.resolved,
    "identity": identity(run),
    "data_fingerprint": dataset.fingerprint,
    "costs": costs,
    "compiler_options": dict(run.compiler_options),
    "environment": dataclasses.asdict(parts[-1].environment if parts else now),
    "history": [dataclasses.asdict(part) for part in history.short(parts)],
  }
  run_text.write(folder, dataset)
  locations.write_text(folder / RECORD, json.dumps(content, indent=2) + "\n")
  locations.write_text(folder / TOKENIZER, dataset.tokenizer.read_text())


def begun(folder: Location) -> Record | None:
  """Returns the record of a run that has trained a step or saved its state; else None.

  Raises:
    ValueError: the record is damaged.
  """
  if not (folder / RECORD).exists():
    return None
  found = read(folder)
  return found if found.parts or reader.saved_steps(folder / "checkpoints") else None


def read(folder: Location) -> Record:
  """Returns the record of a run.

  Raises:
    ValueError: the folder holds no run, or its record is damaged.
  """
  path = folder / RECORD
  try:
    text = locations.read_bytes(path, typed_json.MOST_BYTES)
  except FileNotFoundError:
    raise ValueError(f"{folder} holds no run: {RECORD} is missing; train one there first") from None
  try:
    return typed_json.parse(text, Record, str(path))
  except ValueError as error:
    raise ValueError(f"{error}; it is damaged: restore it, or delete the folder") from None


def identity(run: Run) -> dict[str, Any]:
  """Returns the settings that decide the parameters and the order of the data, as JSON values."""
  data = dataclasses.asdict(run.data)
  del data["root"], data["verify"], data["built"]
  found = model_identity(run.decoder)
  found |= {f"config.data.{key}": value for key, value in data.items()}
  found |= {"config.seed": run.seed, "config.train.batch_size": run.train.batch_size}
  found["config.init_seed"] = run.init_seed
  found |= {"config.optim.name": run.optim.name, "config.train.init_from": run.train.init_from}
  return json.loads(json.dumps(found))


def model_identity(decoder: DecoderConfig) -> dict[str, Any]:
  """Returns the settings that decide the function of a decoder, except settings of its data."""
  model = dataclasses.asdict(decoder)
  residual = model.pop("residual")
  model["residual.name"] = residual["name"]
  for key, value in residual["options"].items():
    model[f"residual.{combinators.section(residual['name'])}.{key}"] = value
  for key in (*_FREE_MODEL_FIELDS, "vocab_size", "max_positions"):  # the data decide the last two
    del model[key]
  for field in dataclasses.fields(decoder):
    if getattr(decoder, field.name) == field.default:  # Records of earlier runs lack such settings.
      del model[field.name]
  for name in _LATER_SCALING:
    if model["rope_scaling"][name] == getattr(RopeScaling, name):
      del model["rope_scaling"][name]
  return json.loads(json.dumps({f"config.model.{key}": value for key, value in model.items()}))
