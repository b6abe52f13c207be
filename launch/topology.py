"""The flag that names the TPU slice that a program is compiled for."""

from absl import flags

FLAG = flags.DEFINE_string("topology", "", "TPU slice, such as v5e-256, v5p-512 or v6e:16x16.")
