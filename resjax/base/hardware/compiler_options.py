"""Options of the compilers: which generation of chips takes which, and evidence for each.

A training run and an ahead-of-time compilation pass them with the program (`jax.jit(...,
compiler_options=...)`), so that both compile the same program in the same way. The environment
variables XLA_FLAGS and LIBTPU_INIT_ARGS would also reach every other program of the process.
"""

import dataclasses
from collections.abc import Mapping

from resjax.base.hardware.chips import find_tpu


@dataclasses.dataclass(frozen=True)
class CompilerOption:
  """An option of libtpu's compiler.

  Attributes:
    name: its name.
    value: its value.
    chips: the keys in `chips.TPU_CHIPS` of the generations that take it.
    evidence: a program that shows its effect there.
  """

  name: str
  value: str
  chips: tuple[str, ...]
  evidence: str


# All counts are of libtpu 0.0.42, which belongs to JAX 0.10.2, and of exchanges in the text of a
# training step for all chips of a slice of 2x2 or 2x2x1: how many run while other work is done, of
# how many. "Small" is the decoder of two layers with D=512 of
# tests/base/hardware/compiler_options_test.py, "1.3B" configs/llama_1p3b.py with `standard`, fsdp=4
# and 16 rows. With libtpu 0.0.50, of JAX 0.12.0, the same exchanges are asynchronous.
#
# Chips with SparseCores (v5p, v6e, tpu7x) exchange there while the TensorCores compute, on tpu7x
# without being asked. The first option of gathers does nothing without that for as many dimensions
# as the torus of the slice has.
#
# Not taken: xla_tpu_enable_async_collective_fusion_fuse_all_gather, which spreads a gather over
# fusions of the TensorCores, 12 of 16 for 1.3B on v5p. libtpu 0.0.50 refuses it on all chips but
# v5e, as it "might lead to many errors including but not limited to: incorrect results"; on v5e it
# is the compiler's own choice. xla_tpu_enable_sparse_core_collective_offload_all_reduce leaves 0 of
# 5 all-reduces asynchronous on v5p. Three options of layout save 3 % of synchronous bytes on v5p.
#
# v5e does not take the last option: it has no SparseCores, so sums of gradients would wait for
# reduce-scatters, 0 of 8 asynchronous and 5.0 GiB in a step of 1.3B, that now go round in permutes;
# 12 of 16 gathers would be asynchronous. xla_enable_async_all_gather changes nothing there.
#
# Platforms other than TPUs take none: the compiler for CPUs refuses all these names, and for GPUs
# nothing was compiled for several devices. NVIDIA's images for JAX set
# xla_gpu_enable_latency_hiding_scheduler=true (docs.nvidia.com/jax-toolbox, "Environment
# Variables"), which config.train.compiler_options may add.
_ON_SPARSE_CORES = ("v5p", "v6e")
_OFFLOAD = "xla_tpu_enable_sparse_core_collective_offload_"
OPTIONS = (
  CompilerOption(
    "xla_enable_async_all_gather",
    "true",
    ("v4",),
    "Small: 0 of 18 gathers without it, 18 of 18 with it.",
  ),
  CompilerOption(
    f"{_OFFLOAD}all_gather",
    "true",
    _ON_SPARSE_CORES,
    "Small: 0 of 18 gathers without this and the next one, 18 of 18 with both on v5p and v6e. "
    "1.3B: 0 of 16 and 16 of 16 on v5p; 0 of 8 and 8 of 8 on v6e without the last option; the same "
    "temporaries.",
  ),
  CompilerOption(
    f"{_OFFLOAD}2d_all_gather",
    "true",
    _ON_SPARSE_CORES,
    "See the one before; 0 of 16 with either of them alone on v5p.",
  ),
  CompilerOption(
    f"{_OFFLOAD}3d_all_gather",
    "true",
    ("v5p",),
    "Two layers with D=2048 on 2x2x4: 0 of 8 gathers without it, 8 of 8 with it. No change on "
    "2x2x1.",
  ),
  CompilerOption(
    f"{_OFFLOAD}reduce_scatter",
    "true",
    _ON_SPARSE_CORES,
    "Of gradients. Small, v5p: 0 of 9 without it, 9 of 9 with it. 1.3B: 0 of 9 and 9 of 9 on v5p, "
    "0 of 2 and 2 of 2 on v6e; temporaries grow from 3.41 to 3.60 GiB and from 3.47 to 3.63.",
  ),
  CompilerOption(
    f"{_OFFLOAD}nd_reduce_scatter",
    "true",
    ("v5p",),
    "Gradients along an axis that fills a slice of three dimensions. 7B on v5p 2x2x4 with fsdp=16 "
    "and the next option: 0 reduce-scatters and 14 all-reduces, 24.6 GiB in a step that nothing "
    "overlaps, without this one; 8 of 8 reduce-scatters asynchronous with it, and all-reduces of "
    "less than 1 MiB.",
  ),
  CompilerOption(
    "xla_jf_spmd_threshold_for_windowed_einsum_mib",
    "1000000",
    ("v5p", "v6e", "tpu7x"),
    "Without it the compiler sends weights and sums of gradients round the chips in permutes, and "
    "multiplies a part at a time: every chip reads its activations again for each part. Passes "
    "per sublayer of `standard`, 7B, in HBM: 374 without it and 153 with it on v6e 4x8 with "
    "fsdp=32 and 1 row per chip, 364 and 130 on v5p 2x2x4 with fsdp=16 and 2 rows. All exchanges "
    "of weights and gradients stay asynchronous; temporaries with `block_attn_res` go from 5.05 to "
    "5.13 GiB and from 8.85 to 8.78. MaxText's recipes for v6e set it.",
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
    setting: `auto` for the device's options, or `none`; then, each after a comma,
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
