"""Options of the compilers: which generation of chips takes which, and what is known of each.

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


# All counts are of libtpu 0.0.42, and of all-gathers in the text of a training step on four chips:
# how many run while other work is done, of how many. "Small" is the decoder of two layers with
# D=512 in tests/hardware/compiler_options_test.py, "1.3B" configs/llama_1p3b.py with `standard`,
# fsdp=4 and 16 rows. What stays synchronous in it are the table of the embeddings, that of the
# output, and the first gather of each of the two loops, which nothing precedes.
#
# v5e takes none: there the compiler's own choice is the same program as with the two options below.
# tpu7x takes none: it gathers 0 of 18 (small) in the background in every case.
#
# The reduce-scatters of gradients stay synchronous, each one fusion of an all-reduce and its slice.
# Not taken: xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter together with
# xla_enable_async_reduce_scatter_fusion. On v5p they make 6 of 9 asynchronous in the small decoder,
# with 44 MiB of temporaries instead of 19, but 1.3B then needs more VMEM than there is and does not
# compile; alone each changes nothing. Three options of layout save 3 % of these bytes on v5p.
#
# Platforms other than TPUs take none: the compiler for CPUs refuses all these names, and for GPUs
# nothing was compiled for several devices. NVIDIA's images for JAX set
# xla_gpu_enable_latency_hiding_scheduler=true (docs.nvidia.com/jax-toolbox, "Environment
# Variables"), which config.train.compiler_options may add.
OPTIONS = (
  CompilerOption(
    "xla_enable_async_all_gather",
    "true",
    ("v4", "v5p", "v6e"),
    "v4, small: 0 of 18 without it, 18 of 18 with it. v5p and v6e: nothing by itself, see the next "
    "one.",
  ),
  CompilerOption(
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
    "true",
    ("v5p", "v6e"),
    "Small: 0 of 18 without both on v5p and v6e, and with either of them alone on v5p; 14 of 18 on "
    "v5p and 9 of 18 on v6e with both. 1.3B on v5p: 0 of 16 without, 12 of 16 with both. On v6e "
    "most weights of 1.3B go round the chips while they are multiplied, with and without; of the "
    "other gathers 0 of 8 without, 6 of 8 with both. On v4, two layers with D=1024, it takes the "
    "first gathers of loops out of the background: 16 of 20 instead of 20 of 20.",
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
