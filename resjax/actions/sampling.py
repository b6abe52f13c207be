"""Continues texts with a trained model."""

from collections.abc import Sequence

from flax import nnx

from resjax.data.tokenizer import END_OF_TEXT
from resjax.measured_models import Subject
from resjax.models.model_def import ModelDef
from resjax.models.sampling import check_options
from resjax.runs.sample import sample_text


def sample(
  subject: Subject,
  prompts: Sequence[str],
  *,
  num_tokens: int = 64,
  temperature: float = 0.8,
  top_k: int = 0,
  top_p: float = 1.0,
  stop: str = END_OF_TEXT,
  seed: int = 0,
) -> list[str]:
  """Returns a continuation of each prompt; see `resjax.runs.sample.sample_text`.

  Raises:
    ValueError: an option is out of range, or the longest text does not fit into a row.
  """
  check_options(temperature, top_k, top_p)
  decoder = subject.decoder
  return sample_text(
    ModelDef(decoder.config, decoder.layout),
    nnx.to_pure_dict(nnx.state(decoder)),
    subject.tokenizer,
    prompts,
    num_tokens=num_tokens,
    temperature=temperature,
    seed=seed,
    top_k=top_k,
    top_p=top_p,
    stop=stop,
  )
