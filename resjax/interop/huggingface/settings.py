"""The settings of a config.json, each of which is used, known to be harmless, or refused."""

from collections.abc import Mapping
from typing import Any

from resjax.nn.rope import RopeScaling

# What does not change the function of a model at inference.
_HARMLESS = frozenset(
  (
    "_attn_implementation", "_attn_implementation_internal", "_commit_hash", "_name_or_path",
    "_num_labels", "architectures", "attention_dropout", "attn_pdrop",
    "bad_words_ids", "begin_suppress_tokens", "bos_token", "bos_token_id",
    "cache_implementation", "chunk_size_feed_forward", "classifier_dropout",
    "decoder_start_token_id", "dtype", "embd_pdrop", "eos_token", "eos_token_id",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
    "hidden_dropout", "id2label", "initializer_range", "is_decoder",
    "keys_to_ignore_at_inference", "label2id", "max_length", "max_sequence_length",
    "model_type", "n_ctx", "name_or_path", "num_labels", "output_attentions",
    "output_hidden_states", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "resid_pdrop", "return_dict", "sep_token_id", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "suppress_tokens",
    "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers.js_config", "transformers_version", "unsloth_version", "use_bfloat16",
    "use_cache",
  )
)  # fmt: skip
_NEEDED = object()


class Settings:
  """A config.json of which every setting must be asked for.

  Args:
    values: what the file holds.
    where: the file, for messages.
  """

  def __init__(self, values: Mapping[str, Any], where: str):
    self._values, self._where, self._used = values, where, set()

  def take(self, name: str, default: Any = _NEEDED) -> Any:
    """Returns a setting; `default` where it is missing or null.

    Raises:
      ValueError: it is missing and has no default.
    """
    self._used.add(name)
    value = self._values.get(name)
    if value is None and default is _NEEDED:
      raise ValueError(f"{self._where} has no {name}")
    return default if value is None else value

  def default(self, name: str, value: Any) -> None:
    """Sets what a setting is where it is missing or null."""
    if self._values.get(name) is None:
      self._values = {**self._values, name: value}

  def nullable(self, name: str, default: Any) -> Any:
    """Returns a setting; `default` where it is missing, 0 where it is null."""
    return self.take(name, 0 if name in self._values else default)

  def expect(self, name: str, *allowed: Any) -> None:
    """Raises a ValueError unless a setting is missing, null, or one of `allowed`."""
    value = self.take(name, allowed[0])
    if value not in allowed:
      raise self.refusal(name, value, ", ".join(repr(a) for a in allowed))

  def choose(self, name: str, default: str, choices: Mapping[str, str]) -> str:
    """Returns what `choices` has for a setting.

    Raises:
      ValueError: it has nothing for it.
    """
    value = self.take(name, default)
    if value not in choices:
      raise self.refusal(name, value, ", ".join(choices))
    return choices[value]

  def refusal(self, name: str, value: Any, allowed: str) -> ValueError:
    """Returns the error that a setting is none that this decoder has."""
    return ValueError(f"{self._where}: {name}={value!r} is not supported; allowed: {allowed}")

  def rope(self, default_fraction: float = 1.0, names: tuple[str, str] | None = None) -> dict:
    """Returns the fields of a decoder config about rotary positions, in old and new spelling.

    Args:
      default_fraction: of each head that is rotated; 1: the family has no other.
      names: what the family calls base and fraction.
    """
    base, fraction = names or ("rope_theta", "partial_rotary_factor")
    given = self.take("rope_parameters", {})
    given = dict(self.take("rope_scaling", given))
    theta = given.pop("rope_theta", self.take(base, 10000.0))
    part = given.pop("partial_rotary_factor", self.take(fraction, default_fraction))
    if names is None and part != 1:
      raise self.refusal(fraction, part, "1.0")
    kinds = {given.pop(name, None) for name in ("rope_type", "type")} - {None}
    kind = kinds.pop() if len(kinds) == 1 else "default" if not kinds else str(kinds)
    scaling = self._scaling(kind, given)
    return {"rope_theta": float(theta), "rope_fraction": float(part), "rope_scaling": scaling}

  def _scaling(self, kind: str, given: dict) -> RopeScaling:
    known = {
      "default": {},
      "linear": {"factor": "factor"},
      "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_max_positions",
      },
    }
    if kind not in known:
      raise self.refusal("rope_scaling.rope_type", kind, ", ".join(known))
    if kind == "llama3":
      given.setdefault("original_max_position_embeddings", self.take("max_position_embeddings", 0))
    names = known[kind]
    for name in (*names, *given):
      if (name in names) != (name in given):
        raise self.refusal(
          f"rope_scaling.{name}", given.get(name), f"{', '.join(names) or 'nothing'} with {kind}"
        )
    fields = {names[name]: value for name, value in given.items()}
    return RopeScaling(kind="none" if kind == "default" else kind, **fields)

  def finish(self) -> None:
    """Raises a ValueError if the file has a setting that nobody asked for, unless it is off."""
    for name, value in self._values.items():
      if name not in self._used | _HARMLESS and value is not None and value is not False:
        raise ValueError(
          f"{self._where}: {name}={value!r} is not known for model_type="
          f"{self._values.get('model_type')!r}, and may change what the model computes"
        )
