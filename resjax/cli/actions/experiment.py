"""An experiment in Python: from a config to a trained model, and back from its folder."""

import os
import sys
from collections.abc import Collection, Mapping
from typing import Any

from ml_collections import ConfigDict

from resjax.base import AS_SEED, Location, processes
from resjax.base.processes import SIGINT_CODE, Interrupted
from resjax.base.records import METRICS_FILE, MetricsTable, read_table
from resjax.cli.actions import loading
from resjax.cli.actions.arguments import checked
from resjax.cli.actions.model import ModelActions
from resjax.cli.actions.settings import Overrides, overridden, read_config
from resjax.study import TrainedModel
from resjax.train import TrainingResult, experiment, loop, parse_steps
from resjax.train.checkpoint import newest
from resjax.train.runs import parents, restore, workdir


class Experiment(ModelActions):
  """A config, and the run that it describes in its workdir.

    experiment = Experiment("tiny", {"train.steps": 100, "model.residual.name": "gate"})
    result = experiment.train()
    print(result.metrics, experiment.generate("import os"))

  Args:
    config: the name of a config that comes with resjax, such as `tiny`, or the path of a file, both
      also with an argument as in `base:gpt2`; or a `ConfigDict` or mapping with all settings.
    overrides: other values of settings by their names without `config.`, such as `train.steps`.

  Attributes:
    workdir: the folder of the run.

  Raises:
    ValueError: a setting is unknown or out of range, or does not fit the devices; or this process
      is one of several.
  """

  def __init__(
    self,
    config: str | os.PathLike | Mapping[str, Any] | ConfigDict,
    overrides: Overrides | None = None,
  ):
    processes.refuse_several("resjax.Experiment")
    found = read_config(config, overrides or {})
    experiment.build(found)
    self._keep(found)

  def _keep(self, config: ConfigDict) -> None:
    self._config = config
    self.workdir: Location = workdir.place(config.workdir)
    self._loaded: tuple[Location, TrainedModel] | None = None  # by checkpoint

  @classmethod
  @checked
  def load(cls, folder: str | os.PathLike, overrides: Overrides | None = None) -> "Experiment":
    """Returns the experiment whose run lies in a workdir, also where other devices trained it.

    Args:
      folder: the workdir.
      overrides: other values of settings, such as more `train.steps`, for `train`.

    Raises:
      ValueError: the folder holds no run, or its record is damaged.
    """
    processes.refuse_several("resjax.Experiment")
    place = os.fspath(folder)
    recorded = workdir.read(workdir.place(place)).config
    loaded = cls.__new__(cls)
    # Records of earlier runs have no init_seed.
    config = ConfigDict({"init_seed": AS_SEED, **recorded, "workdir": place})
    loaded._keep(overridden(config, overrides or {}))
    return loaded

  def __repr__(self) -> str:
    checkpoint = newest(self.workdir / "checkpoints")
    done = 0 if checkpoint is None else int(checkpoint.name)
    name, steps = self._config.model.residual.name, self._config.train.steps
    return f"<Experiment {name} in {self.workdir}: {done} of {steps} steps>"

  @property
  def config(self) -> ConfigDict:
    """A copy of its config."""
    return self._config.copy_and_resolve_references()

  @property
  def metrics(self) -> MetricsTable:
    """The metrics of the run so far; a table without rows if it has not begun."""
    return read_table(self.workdir / METRICS_FILE)

  @checked
  def train(self, *, profile_steps: str = "") -> TrainingResult:
    """Trains to the last step, from the newest checkpoint of the workdir if there is one.

    An interrupt, such as the stop button of a notebook, ends the run after the step in progress,
    which is saved: another call goes on from there. A finished run says so and is not changed.

    Args:
      profile_steps: FIRST:LAST, such as 10:13, steps that are traced with xprof.

    Raises:
      KeyboardInterrupt: it was interrupted; the message says what is saved.
      SystemExit: SIGTERM came, and the step in progress was saved.
      ValueError: see `resjax.train.loop.train`.
    """
    run = experiment.build(self._config)
    self._loaded = None
    profiled = parse_steps(profile_steps, run.train.steps)
    try:
      result = loop.train(run, profile_steps=profiled)
      self._loaded = result.checkpoint, result.trained
      return result
    except Interrupted as stop:
      said, code = str(stop), stop.code
    # Raised here, the error does not hold the frames of the run, whose state would stay in memory.
    if code == SIGINT_CODE:
      raise KeyboardInterrupt(said)
    print(said, file=sys.stderr)
    sys.exit(code)

  def trained(self) -> TrainedModel:
    """Returns the model of the newest checkpoint, which is kept as long as it is the newest one."""
    checkpoint = newest(self.workdir / "checkpoints")
    if checkpoint is None:
      raise ValueError(
        f"config.workdir={str(self.workdir)!r} has no checkpoint yet; call train() first"
      )
    if self._loaded is None or str(self._loaded[0].name) != checkpoint.name:
      self._loaded = checkpoint, loading.from_workdir(str(self.workdir))
    return self._loaded[1]


class Pretrained(ModelActions):
  """A model that is trained already.

  Args:
    path: a Hugging Face folder (config.json, safetensors, tokenizer.json), a GGUF file, or
      OWNER/NAME[@REVISION] of a model on the hub; the workdir of a run, which stands for its newest
      checkpoint, or a checkpoint, WORKDIR/checkpoints/STEP.
    hf_ignore: settings of config.json that are not known, and that change nothing.

  Raises:
    ValueError: it is none of them, a file is missing or damaged, or resjax does not know the
      architecture; or this process is one of several.
  """

  @checked
  def __init__(self, path: str | os.PathLike, hf_ignore: Collection[str] = ()):
    processes.refuse_several("resjax.Pretrained")
    if parents.is_huggingface(path):
      self.workdir = None
      self._trained = loading.from_huggingface(path, ignore=hf_ignore)
    else:
      place = os.fspath(path)
      self.workdir = _saved(place).workdir
      self._trained = loading.from_workdir(place, setting="path")

  def __repr__(self) -> str:
    return f"<Pretrained {self._trained.name}: {self._trained.decoder.config.residual.name}>"

  def trained(self) -> TrainedModel:
    """See `ModelActions.trained`. The model was loaded when this was made."""
    return self._trained


def _saved(path: str) -> restore.Saved:
  try:
    return restore.find(path, "path")
  except ValueError as error:
    raise ValueError(
      f"{error}; or a Hugging Face folder, which has config.json, or a GGUF file"
    ) from None
