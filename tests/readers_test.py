"""No reader writes: each of them looks at hostile folders, and nothing in or beside them changes.

A new reader is a line of `READERS`, a new way to hurt one a function of `ATTACKS`.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import stat

import numpy as np
import pytest

from configs import finetune
from configs.ablations import finetune_cuts
from resjax.base import locations, manifest
from resjax.base.records.metrics_log import read_metrics
from resjax.cli.actions import loading
from resjax.data import dataset, token_files, tokenizer
from resjax.interop import huggingface
from resjax.study.analysis import tuned_lens
from resjax.study.analysis.alignment import Alignment
from resjax.study.analysis.report import results
from resjax.study.analysis.sensitivity import Sensitivity
from resjax.study.analysis.tuned_lens import TunedLens
from resjax.study.evaluation import core, corpora
from resjax.train import experiment
from resjax.train.checkpoint import reader
from resjax.train.runs import parents, restore, workdir
from tests.helpers import pretrained, reports
from tests.helpers.runs import write_text
from tests.helpers.trained import STEPS, run, settings

SECONDS = 60  # in which a reader is done, or it hangs


def text_of(place):
  return place.read_text(errors="replace")


def _fingerprint(root):
  return json.loads(locations.read_bytes(root / "run" / "run.json", 1 << 20))["data_fingerprint"]


def _of_data(root):
  return dataset.find(str(root / "data"), _fingerprint(root))


def _texts(root):
  return dataset.find_texts(str(root / "data"), _fingerprint(root))


def _restored(root):
  saved = restore.find(str(root / "run"), "--checkpoint")
  return restore.restore_model(experiment.load(str(root / "run")), saved)


def _subject_and_text(root):
  model = loading.from_workdir(str(root / "run"))
  return loading.read_text(model, str(root / "run"), max_tokens=100)


def _parent(folder):
  found = parents.find(str(folder))
  config = experiment.load(str(folder.parent / "run")).decoder
  return found.tokenizer(), found.shapes(config), found.identity(config)


def _scored(*names):
  """Returns a reader of texts as resjax evaluate reads them."""

  def read(root):
    for corpus in corpora.parse([f"own={root / name}" for name in names]):
      list(corpus.texts())

  return read


def _questions(root):
  return list(core._read(root / "eval_bundle", None))


# What looks at the folders of `stage`: a run, its data, a Hugging Face folder, results, and texts.
READERS = {
  "record of a run": lambda root: workdir.read(root / "run"),
  "run": lambda root: experiment.load(str(root / "run")),
  "newest checkpoint": lambda root: restore.find(str(root / "run"), "--checkpoint"),
  "checkpoint": lambda root: restore.find(str(root / f"run/checkpoints/{STEPS}"), "--checkpoint"),
  "saved steps": lambda root: reader.saved_steps(root / "run" / "checkpoints"),
  "shapes": lambda root: reader.parameter_shapes(root / f"run/checkpoints/{STEPS}"),
  "checksums": lambda root: reader.checksums_of(root / f"run/checkpoints/{STEPS}"),
  "manifest": lambda root: manifest.check(root / f"run/checkpoints/{STEPS}"),
  "model of a run": _restored,
  "run and its text": _subject_and_text,
  "parent that is a run": lambda root: _parent(root / "run"),
  "tokenizer": lambda root: tokenizer.load(root / "run" / "tokenizer.json"),
  "metrics": lambda root: read_metrics(root / "run" / "metrics.jsonl"),
  "data": _of_data,
  "documents": _texts,
  "fine-tune of a run": lambda root: finetune.get_config(str(root / "run")),
  "Hugging Face config": lambda root: huggingface.read_config(root / "hf"),
  "Hugging Face model": lambda root: huggingface.load(root / "hf"),
  "Hugging Face tokenizer": lambda root: huggingface.tokenizer(root / "hf"),
  "trained model of Hugging Face": lambda root: loading.from_huggingface(str(root / "hf")),
  "parent of Hugging Face": lambda root: _parent(root / "hf"),
  "fine-tune of Hugging Face": lambda root: finetune_cuts.get_config(str(root / "hf")),
  "sensitivity": lambda root: Sensitivity.from_json(text_of(root / "cuts.json")),
  "alignment": lambda root: Alignment.from_json(text_of(root / "alignment.json")),
  "results": lambda root: results.from_json(text_of(root / "results.json")),
  "tuned lens": lambda root: tuned_lens.load(root / "lens", "model"),
  "tokens of nanoGPT": lambda root: token_files.read_nanogpt(root / "tokens/val.bin", 100),
  "tokens of llm.c": lambda root: token_files.read_llmc(root / "tokens/llmc.bin", 100),
  "texts of an evaluation": _scored("texts"),
  "lines of an evaluation": _scored("texts/a.jsonl"),
  "questions of CORE": _questions,
}


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> pathlib.Path:
  """The folders that readers look at, and beside them a victim."""
  root = write_text(tmp_path_factory.mktemp("readers"))
  run(settings(root, root / "run", "standard"))
  shutil.move(pretrained.folder(root, "mistral"), root / "hf")
  found = reports.results()
  (root / "results.json").write_text(results.to_json(found))
  (root / "alignment.json").write_text(found[0].alignment.to_json())
  (root / "cuts.json").write_text(found[0].sensitivities[0].to_json())
  tuned_lens.save(TunedLens(np.zeros((2, 3, 3)), np.zeros((2, 3))), root / "lens", "model")
  _write_scored(root)
  return root


def _write_scored(root):
  """Writes what resjax evaluate reads beside texts: files of tokens, and a folder of CORE."""
  for folder in ("tokens", "texts", "eval_bundle/eval_data"):
    (root / folder).mkdir(parents=True)
  tokens = np.arange(5, dtype="<u2").tobytes()
  header = np.array([token_files.MAGIC, token_files.VERSION, 5, *[0] * 253], "<i4")
  (root / "tokens/val.bin").write_bytes(tokens)
  (root / "tokens/llmc.bin").write_bytes(header.tobytes() + tokens)
  (root / "texts/a.jsonl").write_text('{"text": "depth"}\n')
  task = {"label": "a", "dataset_uri": "a.jsonl", "num_fewshot": [0]}
  tasks = {"icl_tasks": [task | {"icl_task_type": "language_modeling"}]}
  (root / "eval_bundle/core.yaml").write_text(json.dumps(tasks))
  (root / "eval_bundle/eval_meta_data.csv").write_text("Eval Task,Random baseline\na,0\n")
  question = {"context": "depth", "continuation": "width"}
  (root / "eval_bundle/eval_data/a.jsonl").write_text(json.dumps(question))


@pytest.fixture
def root(stage, tmp_path) -> pathlib.Path:
  """A copy of the stage, whose run names the copied data, with a folder of somebody else."""
  root = shutil.copytree(stage, tmp_path / "stranger")
  change(root / "run" / "run.json", lambda values: _under(values, root))
  victim = tmp_path / "victim"
  (victim / "params").mkdir(parents=True)
  (root / "beside").mkdir()
  (root / "beside" / "precious.txt").write_text("precious")
  for name in ("precious.txt", "params/array", "model.safetensors", "tokenizer.json"):
    (victim / name).write_text("precious")
  return root


def _under(values, root):
  values["config"]["data"]["root"] = str(root / "data")


def change(path, edit):
  values = json.loads(path.read_text())
  edit(values)
  path.write_text(json.dumps(values))


def one(root, pattern):
  return sorted(root.glob(pattern))[0]


def names_of_files(name):
  """Puts a name into every file that names others, with digests that fit."""

  def attack(root):
    place = name.replace("VICTIM", str(root.parent / "victim"))

    def rename(values):
      values["weight_map"] = dict.fromkeys(values["weight_map"], f"{place}/model.safetensors")

    def relist(values):
      values["files"][f"{place}/params/array"] = [8, hashlib.sha256(b"precious").hexdigest()]
      signed = sorted((key, tuple(entry)) for key, entry in values["files"].items())
      signed = [signed, values["facts"]] if values.get("facts") else signed
      values["sha256"] = hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()

    def redirect(values):
      values["tokenizer"] = f"{place}/tokenizer.json"
      for corpus in values["corpora"].values():
        corpus["rows"] = corpus["text"] = place

    change(root / "hf" / "model.safetensors.index.json", rename)
    change(root / f"run/checkpoints/{STEPS}/manifest.json", relist)
    change(one(root, "data/summary-*.json"), redirect)

  return attack


def rows_beside(root):
  """Names rows that are absent, in a folder beside that of the data."""

  def redirect(values):
    for corpus in values["corpora"].values():
      corpus["rows"] = corpus["text"] = "../beside/absent"

  change(one(root, "data/summary-*.json"), redirect)


def fingerprint(root):
  change(root / "run/run.json", lambda v: v.update(data_fingerprint="x/../../../victim/precious"))


def data_elsewhere(root):
  """Names a folder as the root of the data that holds other things, and one that is absent."""
  victim = str(root.parent / "victim")
  change(root / "run/run.json", lambda v: v["config"]["data"].update(root=victim))


def data_nowhere(root):
  absent = str(root.parent / "absent" / "data")
  change(root / "run/run.json", lambda v: v["config"]["data"].update(root=absent))


def tokenizer_files(root):
  """Names a file outside in the tokenizer of the run, which an export would write."""
  record = {"name": "pretrained", "vocab_size": 61, "ids": {"bos_token_id": 0}}
  record["files"] = {"tokenizer.json": text_of(root / "hf/tokenizer.json"), "../../victim/x": "y"}
  (root / "run/tokenizer.json").write_text(json.dumps(record))


def links(root):
  """Has a link to the victim at the place of every lock, temporary file and folder."""
  victim = root.parent / "victim"
  for name in (
    "run/.lock", "run/.run.json.partial", "run/metrics.jsonl.tmp", "run/manifest.json",
    "data/.lock", "hf/.lock", f"run/checkpoints/{STEPS}/params/extra",
    f"run/checkpoints/{STEPS}/.manifest.json.partial", ".results.json.partial",
  ):  # fmt: skip
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(victim / "precious.txt")
  for name in ("run/checkpoints/7", f"run/checkpoints/{STEPS}/data", "run/checkpoints/damaged-7"):
    shutil.rmtree(root / name, ignore_errors=True)
    (root / name).symlink_to(victim)
  for corpus in sorted(root.glob("data/*/*")):
    (corpus.parent / f".partial-{corpus.name}").symlink_to(victim)


def linked_rows(root):
  """Replaces the folders of built data by links to the victim."""
  for folder in sorted(root.glob("data/*/*")):
    if folder.is_dir():
      shutil.rmtree(folder)
      folder.symlink_to(root.parent / "victim")


def scored_elsewhere(root):
  """Names the victim in what an evaluation reads, and puts links to it there."""
  victim = root.parent / "victim"
  settings = root / "eval_bundle/core.yaml"
  change(settings, lambda v: v["icl_tasks"][0].update(dataset_uri="../../../victim/precious.txt"))
  for name in ("lens/lens.safetensors", "tokens/val.bin", "tokens/llmc.bin", "texts/a.jsonl"):
    (root / name).unlink()
    (root / name).symlink_to(victim / "precious.txt")


def lying_headers(root):
  """Tells of more tokens, and of larger tensors, than there are."""
  path = root / "tokens/llmc.bin"
  path.write_bytes(path.read_bytes()[:8] + b"\xff\xff\xff\x7f" + path.read_bytes()[12:])
  header = b'{"weights": {"dtype": "F32", "shape": [99999, 99999], "data_offsets": [0, 4]}}'
  content = len(header).to_bytes(8, "little") + header + b"1234"
  (root / "lens/lens.safetensors").write_bytes(content)
  digest = hashlib.sha256(content).hexdigest()
  change(root / "lens/lens.json", lambda values: values.update(digest=digest))


def half_built(root):
  """Removes the files by which readers know that built data are complete, and leaves the rest."""
  for path in [*root.glob("data/*/*/metadata.json"), *root.glob("data/tokenizers/*/*.json")]:
    path.unlink()


def module_in_features(root):
  """Names a module in the description of records, which leaves a file when it is imported."""
  module = f"stranger_{root.parent.parent.name.replace('-', '_')}"
  victim = root.parent / "victim" / "imported"
  (root / f"{module}.py").write_text(f"open({str(victim)!r}, 'w')")
  for path in root.glob("data/**/features.json"):
    change(path, lambda values: values.update(pythonClassName=f"{module}.Features"))


def half_saved(root):
  """Has checkpoints that were not finished, as a killed run leaves them."""
  for name in ("9.orbax-checkpoint-tmp-1", "9.orbax-checkpoint-tmp", "junk.orbax-checkpoint-tmp"):
    shutil.copytree(root / f"run/checkpoints/{STEPS}", root / "run/checkpoints" / name)


def cut_metrics(root):
  path = root / "run/metrics.jsonl"
  path.write_bytes(path.read_bytes()[:-5])


def pipes(root):
  """Has a pipe, to which nobody writes, at the place of every file that is read."""
  for path in (
    *root.glob("run/*.json*"), *root.glob(f"run/checkpoints/{STEPS}/params/_METADATA"),
    *root.glob("hf/*"), *root.glob("data/summary-*.json"), *root.glob("lens/*"),
    *root.glob("tokens/*"), *root.glob("texts/*"), *root.glob("eval_bundle/*.*"),
  ):  # fmt: skip
    path.unlink()
    os.mkfifo(path)


def pipe_in_a_checkpoint(root):
  path = root / f"run/checkpoints/{STEPS}/params/_METADATA"
  path.unlink()
  os.mkfifo(path)


ATTACKS = {
  "none": lambda root: None,
  "..": names_of_files("../victim"),
  "deep ..": names_of_files("a/../../../../victim"),
  "absolute": names_of_files("VICTIM"),
  "rows beside": rows_beside,
  "fingerprint": fingerprint,
  "data elsewhere": data_elsewhere,
  "data nowhere": data_nowhere,
  "tokenizer files": tokenizer_files,
  "links": links,
  "linked rows": linked_rows,
  "scored elsewhere": scored_elsewhere,
  "lying headers": lying_headers,
  "half built": half_built,
  "module in features": module_in_features,
  "half saved": half_saved,
  "cut metrics": cut_metrics,
  "pipes": pipes,
  "pipe in a checkpoint": pipe_in_a_checkpoint,
}


def snapshot(place):
  """Everything below a folder: names, kinds, sizes, contents, times, and where links lead."""
  found = {}
  for path in [place, *sorted(place.rglob("*"))]:
    info = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(info.st_mode) else b""
    content = os.readlink(path).encode() if path.is_symlink() else content
    about = info.st_mode, info.st_size, info.st_mtime_ns, hashlib.sha256(content).hexdigest()
    found[path.relative_to(place).as_posix()] = about
  return found


@contextlib.contextmanager
def limited():
  """Ends a reader that hangs."""

  def late(*_):
    raise AssertionError(f"not done after {SECONDS} s")

  before = signal.signal(signal.SIGALRM, late)
  signal.alarm(SECONDS)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.slow
def test_readers_change_nothing(root, attack, monkeypatch):
  monkeypatch.syspath_prepend(str(root))  # as of a command that is started inside of the folder
  ATTACKS[attack](root)
  before, wrong = snapshot(root.parent), []
  for name, read in READERS.items():
    said = ""
    try:
      with limited():
        read(root)
    except (ValueError, OSError) as error:
      said = str(error)
    except Exception as error:
      wrong.append(f"{name}: {error!r}")
    after = snapshot(root.parent)
    if after != before:
      changed = {path for path in {**before, **after} if before.get(path) != after.get(path)}
      wrong.append(f"{name} changes {sorted(changed)}")
    if "\n" in said and "tensors are not those" not in said:
      wrong.append(f"{name} says in several lines: {said}")
    if attack == "none" and said:
      wrong.append(f"{name} refuses what is good: {said}")
    before = after
  assert not wrong, "\n".join(wrong)
