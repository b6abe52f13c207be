"""What is carried to a GPU machine without network is what resjax needs and the machine lacks."""

import configparser
import re

from tests.helpers.runs import REPOSITORY

TORCH = "torch"  # is on the machine, and left out of the fake for it


def listed(name):
  lines = (REPOSITORY / "launch" / "bench" / name).read_text().splitlines()
  return dict((*line.split("=="), "")[:2] for line in lines if not line.startswith("#"))


def plain(requirement):
  """The name of a requirement, as all spellings of it are compared."""
  return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


KIT, MACHINE = (
  {plain(n): v for n, v in listed(f).items()} for f in ("gpu_kit.txt", "gpu_machine.txt")
)


def extra(name):
  config = configparser.ConfigParser(inline_comment_prefixes="#")
  config.read(REPOSITORY / "setup.cfg")
  section = "options" if name == "install_requires" else "options.extras_require"
  lines = config[section][name].splitlines()
  return [line.strip() for line in lines if line.strip() and not line.strip().startswith("resjax")]


def least(requirement):
  return tuple(map(int, re.findall(r"\d+", requirement.partition(">=")[2])))


def test_the_trainer_and_the_benchmarks_have_what_they_declare():
  for requirement in [*extra("install_requires"), *extra("train"), *extra("bench")]:
    name = plain(requirement)
    if name == TORCH:
      continue
    assert name in KIT or name in MACHINE, requirement
    version = KIT.get(name) or MACHINE.get(name)
    assert not version or tuple(map(int, version.split("."))) >= least(requirement), requirement


def test_each_wheel_has_one_version_and_the_machine_has_none_of_them():
  assert all(re.fullmatch(r"\d+(\.\d+)+", version) for version in KIT.values())
  assert not KIT.keys() & MACHINE.keys()
  assert {version for name, version in MACHINE.items() if name.startswith("jax")} == {"0.11.2"}
