"""The flag of what stands in front of texts, the same in all commands that give a model texts."""

from absl import flags

from resjax.data import prefix

BOS = flags.DEFINE_enum(
  "bos", "auto", prefix.RULES, "Whether something stands in front of texts; auto: by the tokenizer."
)
