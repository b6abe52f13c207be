"""The flag that names the TPU slice or the GPUs that a program is compiled for."""

from absl import flags

FLAG = flags.DEFINE_string(
  "topology", "", "TPU slice, such as v5e-256, v5p-512 or v6e:16x16; or GPUs, such as h100-8."
)
