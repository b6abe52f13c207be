"""What can be asked of a trained model in Python: generate, evaluate, analyze."""

import abc
import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from resjax.base import Location, locations, terminal
from resjax.cli.actions import loading, scoring
from resjax.cli.actions.arguments import check_least, checked
from resjax.cli.actions.scoring import Evaluation, ScoringConfig
from resjax.cli.actions.tasks import find as find_tasks
from resjax.data import END_OF_TEXT, MeasuredText
from resjax.study import TrainedModel
from resjax.study.analysis import READINGS, ProbeConfig
from resjax.study.evaluation import Corpus, corpora
from resjax.train import experiment
from resjax.train.runs import prefix_of_prompts, sample_text

if TYPE_CHECKING:  # it draws, and matplotlib takes a second
  from resjax.cli.actions.analysis import Analysis


class ModelActions(abc.ABC):
  """The methods of a trained model: generate, evaluate and analyze.

  Arguments equal the flags of the commands; messages name these.

  Attributes:
    workdir: the folder of the run that trained it; None: no run of resjax did.
  """

  workdir: Location | None

  @abc.abstractmethod
  def trained(self) -> TrainedModel:
    """Returns the decoder with its parameters, and its tokenizer.

    Raises:
      ValueError: it is not trained yet, or a file is damaged.
    """

  @checked
  def generate(
    self,
    prompts: str | Sequence[str] = "",
    *,
    num_tokens: int = 64,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    stop: str = END_OF_TEXT,
    bos: str = "auto",
    seed: int = 0,
    num_samples: int = 1,
  ) -> list[str]:
    """Returns continuations of texts, without the texts.

    A line on the standard error says what stood in front of the texts.

    Args:
      prompts: the beginning of a text, which may be empty, or several of them.
      num_tokens: the most tokens of a continuation.
      temperature: the temperature of the sampling; 0 takes the most probable token.
      top_k: tokens are sampled among the k most probable ones; 0: among all.
      top_p: tokens are sampled among the most probable ones that sum to p; 1: among all.
      stop: the text of a token at which a continuation ends, as it always does at the end of text;
        special tokens, too.
      bos: whether something stands in front of texts: always, never, or auto: as the rules of the
        tokenizer say, or as in training.
      seed: the seed of the random numbers.
      num_samples: the number of continuations of each prompt, which follow each other.

    Raises:
      ValueError: the model is not trained yet, an option is out of range, or the longest text does
        not fit into a row.
    """
    check_least(1, num_samples=num_samples)
    check_least(0, num_tokens=num_tokens, seed=seed)
    given = [prompts] if isinstance(prompts, str) else list(prompts)
    if not given:
      raise ValueError(f"prompts={prompts!r} are none; give one, which may be empty")
    model = dataclasses.replace(self.trained(), bos=bos)
    texts = sample_text(
      model,
      [prompt for prompt in given for _ in range(num_samples)],
      num_tokens=num_tokens,
      temperature=temperature,
      top_k=top_k,
      top_p=top_p,
      stop=stop,
      seed=seed,
    )
    terminal.say(terminal.console(stderr=True), prefix_of_prompts(model, given))
    return texts

  @checked
  def evaluate(
    self,
    texts: Mapping[str, str] | None = None,
    *,
    tasks: Sequence[str] = (),
    tasks_folder: str | os.PathLike | None = None,
    compare: Sequence["ModelActions"] = (),
    data_format: str = "auto",
    data_field: str = "",
    max_length: int = 0,
    stride: int | Sequence[int] = 0,
    bos: str = "auto",
    batch_size: int = 8,
    limit: int = 0,
    num_fewshot: int | None = None,
    apply_chat_template: bool = False,
    out: str | os.PathLike | None = None,
  ) -> Evaluation:
    """Scores the model on texts and tasks: perplexities, bits per byte, accuracies.

    Args:
      texts: [CONVENTION:]SOURCE[@SPLIT] by the name of the text, see docs/evaluation.md. Default,
        where there are no tasks: the documents that the run held out for validation.
      tasks: names of tasks, of resjax or of lm-evaluation-harness.
      tasks_folder: the folder with their data.
      compare: other models, which are compared with this one document by document.
      data_format: the format of files, one of `resjax.data.config.FORMATS`.
      data_field: the field, column or feature with the text; "": by the convention.
      max_length: the most inputs of a row; 0: as many as in training, of a pretrained model at
        most 1024.
      stride: by how many tokens windows advance, one number or several; 0: by max_length.
      bos: whether something stands in front of contexts: always, never, or auto: as the rules of a
        pretrained tokenizer say, and nothing with others.
      batch_size: the number of rows at a time.
      limit: at most this many documents of each text and task; 0: all.
      num_fewshot: examples before each question of the harness; None: as tasks say.
      apply_chat_template: whether questions of the harness are put as chats.
      out: the folder to write results.json and samples.parquet to; None: nothing is written.

    Raises:
      ValueError: the model is not trained yet, or a text, a task or a setting does not fit.
    """
    if not isinstance(texts, Mapping | None):
      raise ValueError(f"texts={texts!r}; give sources by name, such as {{'licence': 'LICENSE'}}")
    strides = list(stride) if isinstance(stride, Collection) else [stride]
    if not strides:
      raise ValueError(f"stride={stride!r} has no number; give one, 0 for max_length")
    check_least(1, batch_size=batch_size)
    check_least(0, limit=limit, max_length=max_length, num_fewshot=num_fewshot or 0)
    asked = find_tasks(tasks, None if tasks_folder is None else os.fspath(tasks_folder))
    items = [f"{name}={place}" for name, place in (texts or {}).items()]
    found = corpora.parse([*items, *asked.texts], data_format, data_field)
    if not texts and not tasks:
      found = self._held_out()
    config = ScoringConfig(
      max_length, strides, bos, batch_size, limit, num_fewshot, apply_chat_template
    )
    folder = None if out is None else _made(out)
    with terminal.status() as status:
      loaders = [model.trained for model in (self, *compare)]
      scored = scoring.score(loaders, found, asked, config, status)
    if folder is None:
      return scored
    given = {"texts": [vars(text) for text in found], "tasks": list(tasks), **vars(config)}
    return scoring.write(scored, folder, {"arguments": given})

  def _held_out(self) -> list[Corpus]:
    """Returns the documents that the run held out for validation, a text for each corpus."""
    if self.workdir is None:
      raise ValueError("nothing to score; give texts={NAME: SOURCE} or tasks=[NAME]")
    config = experiment.load(str(self.workdir)).data
    start = config.test_fraction
    split = f"hash:{start:.12f}-{start + config.validation_fraction:.12f}"
    return [
      Corpus(name, one.source, "documents", split, one.format, one.field, corpora.MACRO)
      for name, one in config.corpora
    ]

  @checked
  def analyze(
    self,
    data: str | os.PathLike | None = None,
    *,
    text: str | None = None,
    compare: Sequence["ModelActions"] = (),
    every: str = "layer",
    readings: Sequence[str] = READINGS,
    tokens: int = 0,
    seq_len: int = 0,
    batch_size: int = 8,
    data_format: str = "auto",
    data_field: str = "text",
    bos: str = "auto",
    out: str | os.PathLike | None = None,
  ) -> "Analysis":
    """Measures after which layers the model reads which token, and writes a page about it.

    Args:
      data: the workdir of a run, for the validation split of its corpora; or python-stdlib, a file,
        folder or glob of text, JSON or Parquet, or tfds:NAME[/CONFIG]. Default: the run itself.
      text: the text to show token by token at every depth; default: the beginning of the data.
      compare: other models, which are drawn over this one by relative depth.
      every: after what the state is decoded, `layer` or `site`.
      readings: what is decoded, see `resjax.study.analysis.alignment.READINGS`.
      tokens: the most tokens of the data; 0: 16,384, and fewer of large models on a CPU.
      seq_len: the tokens in a row; 0: as many as in training, of a pretrained model at most 1024,
        and fewer where there are fewer tokens.
      batch_size: the number of rows at a time.
      data_format: the format of files, one of `resjax.data.config.FORMATS`.
      data_field: the field of JSON, column of Parquet or feature of TFDS that holds the text.
      bos: whether something stands in front of texts, see `generate`.
      out: the folder to write the page to; default: `analysis` in the workdir, or runs/analysis.

    Raises:
      ValueError: the model is not trained yet, or there is no text, or it does not fit.
    """
    from resjax.cli.actions import analysis

    analysis.check_text(text)
    check_least(1, batch_size=batch_size)
    check_least(0, seq_len=seq_len, tokens=tokens)
    config = ProbeConfig(every=every, readings=tuple(readings))
    source = os.fspath(data or "") or (self.workdir and str(self.workdir))
    if not source:
      raise ValueError("no text; give data=: a file, a folder, the workdir of a run, python-stdlib")

    def read(model: TrainedModel) -> MeasuredText:
      most, length = analysis.sizes(config, model, tokens, seq_len)
      sizes = {"max_tokens": most, "batch_size": batch_size, "seq_len": length}
      return loading.read_text(model, source, **sizes, form=data_format, field=data_field)

    with terminal.status() as status:
      status("loading")
      models = [dataclasses.replace(one.trained(), bos=bos) for one in (self, *compare)]
      prepared = analysis.prepare(models, read, text)
      folder = _made(out or (self.workdir / "analysis" if self.workdir else "runs/analysis"))
      results = analysis.measure_all(prepared, config, status)
      status("drawing")
      return analysis.write(results, folder)


def _made(out: str | os.PathLike) -> Location:
  """Returns a folder to write to, which is made where missing."""
  folder = locations.path(out, "out", writable=True)
  locations.make_folder(folder, "out")
  return folder
