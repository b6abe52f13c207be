"""Continues texts with a trained model."""

from collections.abc import Sequence
from typing import Any

from flax import nnx

from resjax.data.prefix import spelled, start_token
from resjax.measured_models import Subject
from resjax.models.model_def import ModelDef
from resjax.runs.sample import sample_text


def sample(subject: Subject, prompts: Sequence[str], **options: Any) -> list[str]:
  """Returns a continuation of each prompt, in front of which `subject.prefix` stands.

  Args:
    subject: the model.
    prompts: the beginnings of the texts, which may be empty.
    **options: those of `resjax.runs.sample.sample_text`.

  Raises:
    ValueError: an option is out of range, or the longest text does not fit into a row.
  """
  decoder = subject.decoder
  return sample_text(
    ModelDef(decoder.config, decoder.layout),
    nnx.to_pure_dict(nnx.state(decoder)),
    subject.tokenizer,
    prompts,
    prefix=subject.prefix,
    **options,
  )


def told(subject: Subject, prompts: Sequence[str]) -> str:
  """Returns a line about what stands in front of prompts, or in place of empty ones."""
  if subject.prefix or all(prompts):
    return subject.prefix_in_words
  start = spelled(subject.tokenizer, (start_token(subject.tokenizer),))
  return f"{subject.prefix_in_words}; {start} in place of an empty one"
