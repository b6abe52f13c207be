"""Options of the compilers: which ones each generation of chips takes, and what each is known to do.

A training run and an ahead-of-time compilation pass them with the program (`jax.jit(...,
compiler_options=...)`), so that both compile the same program in the same way. The environment
variables XLA_FLAGS and LIBTPU_INIT_ARGS would also reach every other program of the process.
"""

import dataclasses
from collections.abc import Mapping

from resjax.hardware.chips import find_tpu


@dataclasses.dataclass(frozen=True)
class CompilerOption:
  """An option of libtpu's compiler.

  Attributes:
    name: its name.
    value: its value.
    chips: the keys in `chips.TPU_CHIPS` of the generations that take it.
    evidence: which program shows what it does there.
  """

  name: str
  value: str
  chips: tuple[str, ...]
  evidence: str


_GATHERS = (
  "All-gathers of weights that run while other work is done, of all in the program: {}. One alone "
  "of the two options changes nothing."
)
# Platforms other than TPUs take none: the compiler for CPUs refuses all names, and for GPUs nothing
# was compiled for several devices. NVIDIA's images for JAX set
# xla_gpu_enable_latency_hiding_scheduler=true (docs.nvidia.com/jax-toolbox, "Environment
# Variables"); here it may be added by config.train.compiler_options.
OPTIONS = (
  CompilerOption("xla_enable_async_all_gather", "true", ("v4", "v5p", "v6e"), _GATHERS),
  CompilerOption(
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather", "true", ("v5p", "v6e"), _GATHERS
  ),
)
_FORM = (
  "begin with auto (those of the chip) or none; then may follow, separated by commas, NAME=VALUE "
  "(adds or replaces) and -NAME (removes)"
)


def defaults(platform: str, device_kind: str) -> dict[str, str]:
  """Returns the options of a kind of device, by name; empty where none are known to help."""
  chip = find_tpu(device_kind) if platform == "tpu" else None
  return {option.name: option.value for option in OPTIONS if chip in option.chips}


def check(setting: str) -> None:
  """Checks the text of config.train.compiler_options, of which `resolve` tells the meaning.

  Raises:
    ValueError: it has another form, or removes an option that no chip takes.
  """
  first, *words = setting.split(",")
  if first not in ("auto", "none"):
    raise ValueError(f"config.train.compiler_options={setting!r}: {_FORM}")
  for word in words:
    name, equals, value = word.partition("=")
    removed = name.removeprefix("-")
    if name.startswith("-") == bool(equals) or not removed or bool(equals) != bool(value):
      raise ValueError(f"config.train.compiler_options={setting!r}: {word!r}; {_FORM}")
    if not equals and removed not in {option.name for option in OPTIONS}:
      known = ", ".join(option.name for option in OPTIONS)
      raise ValueError(
        f"config.train.compiler_options={setting!r}: {removed} is not among the options of any "
        f"chip ({known}), and needs no -"
      )


def resolve(setting: str, platform: str, device_kind: str) -> Mapping[str, str]:
  """Returns the options to compile with, by name.

  Args:
    setting: `auto`: those of the device; `none`: none of them; then, each after a comma,
      `NAME=VALUE` adds or replaces an option, and `-NAME` removes one.
    platform: `tpu`, `gpu` or `cpu`.
    device_kind: the kind of its devices, as `jax.Device.device_kind` tells it.

  Raises:
    ValueError: see `check`.
  """
  check(setting)
  first, *words = setting.split(",")
  options = defaults(platform, device_kind) if first == "auto" else {}
  for word in words:
    if word.startswith("-"):
      options.pop(word[1:], None)
    else:
      name, _, value = word.partition("=")
      options[name] = value
  return options


def text(options: Mapping[str, str]) -> str:
  """Returns options in words, for the terminal."""
  return ", ".join(f"{name}={value}" for name, value in options.items()) or "none"
