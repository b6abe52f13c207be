"""What a launcher checks of the training that it will start, before any machine is paid for."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict

from launch import launcher_args, preflight_model
from launch.preflight_model import Hardware
from resjax.cli import command
from resjax.data import DataConfig, Finding, source_check

_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](/|$)")
_WITH_DATA = ("train", "sweep", "train_together", "build_dataset")
_VERDICTS = {True: "ok", None: "not checked"}
_Findings = Iterator[Finding]


def check(command: Sequence[str], hardware: Hardware, *, compiles: bool = True) -> None:
  """Prints a line for each thing that was checked, or that cannot be checked from here.

  The flags are right, see `flag_check.check`.

  Args:
    command: what the hosts will run; nothing is said of commands that build no data.
    hardware: what they are.
    compiles: whether the step is compiled to see if it fits, where its compiler is installed.

  Raises:
    ValueError: something is wrong; the message says all of it, and what to do.
  """
  found = launcher_args.resjax_command(command)
  if found is None or found[0] not in _WITH_DATA:
    if not command:
      print(f"# nothing is checked; what will run, behind --, would be: {launcher_args.EXAMPLE}\n")
    return
  name, arguments = found[0], launcher_args.joined(found[1])
  print("# checked first:")  # a comment, as --dry_run prints a shell script
  wrong = []
  for one in _findings(name, arguments, hardware, compiles):
    if one.ok is False:
      wrong.append(one.text)
    else:
      print(f"#   {one.what:6} {_VERDICTS[one.ok]}: {one.text}", flush=True)
    if wrong and one.what == "mesh":
      break  # what comes next may take minutes
  if wrong:
    raise ValueError("; ".join(wrong))
  print()


def _findings(name: str, arguments: Sequence[str], hardware: Hardware, compiles: bool) -> _Findings:
  place = launcher_args.config_file(arguments)
  config = _parsed(arguments, place)
  from resjax.train import (
    experiment,  # takes a second, which mistakes on the command line need not wait
  )

  try:
    data = experiment.data_config(config)
  except ValueError as error:
    yield Finding("config", False, f"{place}: {error}")
    return
  yield from _sources(data, hardware)
  yield from _bucket(config.workdir, "config.workdir")
  yield from _bucket(data.root, "config.data.root")
  if name != "train":  # a sweep changes what follows
    return
  words = [word for word in arguments if word.startswith("--config")]
  yield from preflight_model.check(config, place, hardware, compiles, words)


def _parsed(arguments: Sequence[str], place: Path) -> ConfigDict:
  """Returns the config of a command line; it runs the config file."""
  argument = launcher_args.setting(arguments, "config").partition(":")[1:]
  line = ["train", f"--config={place}{''.join(argument)}"]
  line += [word for word in arguments if re.match(r"--?(no)?config\.", word)]
  values = flags.FlagValues()
  holder = command.define_config("The config to check.", values, line)
  values(line)
  return holder.value


def _sources(data: DataConfig, hardware: Hardware) -> _Findings:
  names = [(f"config.data.corpora.{name}.source", one.source) for name, one in data.corpora]
  found = source_check.check(data)
  for finding, (setting, source) in zip(found, names, strict=False):
    remote = "://" in source or source.startswith(("tfds:", "synthetic:")) or data.built
    if remote or source == "python-stdlib" or hardware.sees_here:
      yield Finding("source", finding.ok, f"{finding.what}: {finding.text}")
    elif launcher_args.is_under(source, hardware.shared):
      yield Finding("source", None, f"{setting}={source} is on a disk that only the hosts see")
    else:
      copy = f"gcloud storage cp --recursive {shlex.quote(source)} gs://BUCKET/text"
      text = f"{setting}={source} is not on the hosts, whose disks are new; put the text into a "
      yield Finding("source", False, f"{text}bucket ({copy}) and give --{setting}=gs://BUCKET/text")


def _bucket(path: str, setting: str) -> _Findings:
  if not path.startswith("gs:"):
    return
  if not _BUCKET.match(path):
    needs = "gs://BUCKET/FOLDER with a bucket of 3 or more of a-z, 0-9, - _ and ."
    yield Finding("bucket", False, f"{setting}={path} is not {needs}")
    return
  bucket = "/".join(path.split("/")[:3])
  found = source_check.reachable(bucket)
  make = f"make it with `gcloud storage buckets create {bucket}`"
  text = f"{found.text}; {make}" if found.ok is False else found.text
  yield Finding("bucket", found.ok, f"{setting}={path}: {text}")
