"""Every setting of resjax with its default. Experiments start from here and change a few.

The argument is the style of the decoder, `llama` (default) or `gpt2`.

  resjax train --config=base:gpt2 --config.train.steps=1000

The options of a residual system are the arguments of its class, with the same defaults:
config.model.residual.NAME. This file and its neighbours hold data only, and import no JAX.
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict


class _AnySection(type):
  """The kind of sections that any other one may take the place of, see `Residual`."""

  def __instancecheck__(cls, instance: Any) -> bool:
    return isinstance(instance, ConfigDict)  # what ConfigDict asks of a value that replaces one


class Residual(ConfigDict, metaclass=_AnySection):
  """The name of the residual system, and options of systems, each under its name.

  The options of a system that a config says nothing of are made of its class when they are asked
  for, which imports JAX.
  """

  def __getitem__(self, key: str) -> Any:
    if key.isidentifier() and key not in self and not key.startswith("_"):
      from resjax.study import config_tree

      try:
        config_tree.add_section(self, key)
      except ValueError as error:
        raise KeyError(str(error)) from None
    return super().__getitem__(key)

  def update_from_flattened_dict(self, flattened_dict: Mapping, strip_prefix: str = "") -> None:
    """As that of `ConfigDict`, which asks for a section by `in` first."""
    for name in flattened_dict:
      section, *keys = name.removeprefix(strip_prefix).split(".")
      if name.startswith(strip_prefix) and keys:
        self.get(section)
    super().update_from_flattened_dict(flattened_dict, strip_prefix)


def get_config(style: str = "llama") -> ConfigDict:
  config = ConfigDict(
    {
      "workdir": "runs/base",  # holds metrics, checkpoints, plots and the resolved config; may be gs://
      "seed": 0,  # decides the initial parameters and the order of the data
      "init_seed": -1,  # decides the initial parameters alone; -1: as seed
      "model": model(),
      "data": data(),
      "optim": optim(),
      "train": train(),
      "health": health(),
      "checkpoint": checkpoint(),
      "mesh": mesh(),
      "sharding": sharding(),
    }
  )
  config.model.residual = Residual(config.model.residual)
  styles = {"gpt2": gpt2_style, "llama": llama_style}
  if style not in styles:
    raise ValueError(f"style {style!r} is not known; choose one of {sorted(styles)}")
  styles[style](config.model)
  return config


def model() -> dict:
  return {
    "num_layers": 12,  # L
    "d_model": 768,  # D
    "num_heads": 12,  # H
    "num_kv_heads": 12,  # K; fewer than num_heads: grouped-query attention
    "head_dim": 0,  # C; 0: d_model / num_heads
    "mlp_dim": 3072,  # F
    "positions": "rope",  # rope | learned
    "rope_theta": 10000.0,
    "rope_fraction": 1.0,  # the share of each head that is rotated, from its start
    "rope_scaling": rope_scaling(),
    # Layers take turns, as with windows: sections of `theta` (0: no rotation) and `scaling` (as
    # rope_scaling) in place of the two settings above; (): the same for all layers.
    "ropes": (),
    "norm": "rmsnorm",  # rmsnorm | layernorm
    "norm_eps": 1e-6,
    "norm_bias": False,  # layernorm: it has a bias whatever `bias` says
    "norm_gate": norm_gate(),
    "pre_norm": True,  # normalise what each sublayer reads, unless the combinator does
    "post_norm": False,  # also normalise the output of each sublayer before the combinator
    "mlp": "swiglu",  # swiglu | geglu | gelu (both tanh approximation) | gelu_exact
    "bias": "none",  # none | qkv | attention (also its output) | all (also MLP and LayerNorm)
    "parallel": False,  # attention and MLP read the same input, as one site `parallel`
    "qk_norm": False,  # RMSNorm of queries and keys
    "qk_norm_over": "head",  # head | heads (all of a token together, as in OLMo 2)
    "query_pre_attn_scalar": 0.0,  # scores are q · k / sqrt(this); 0: head_dim
    "windows": (0,),  # tokens that a token sees, itself included; 0: all. Layers take turns
    "attention_softcap": 0.0,  # c in c · tanh(score / c), which replaces scores; 0: off
    "logit_softcap": 0.0,  # the same for the logits
    "embed_scale": False,  # multiply token embeddings by sqrt(d_model)
    # Whether values mix with the first layer's, by two weights or by a gate that sees the token.
    "value_residual": "none",  # none | learned | fixed | gated
    "value_gate": value_gate(),
    "value_mixing": "none",  # none | depth (softmax over some earlier layers)
    "depth_values": depth_values(),
    "short_swa": short_swa(),
    "tied_embeddings": True,
    "init_std": 0.02,
    "scaled_output_init": True,  # output projections: init_std / sqrt(2 L)
    "dtype": "auto",  # dtype of activations; auto: bfloat16 on accelerators, float32 on CPU
    "attention": "auto",  # auto (by platform) | splash | cudnn | xla
    "remat": "full",  # none | full | dots: what a layer recomputes in the reverse pass
    "depth": "scan",  # scan (the combinator's strategy) | loop (plain Python loop)
    "mup": mup(),
    "moe": moe(),
    "residual": {"name": "standard"},  # and the options of systems, see `Residual`
  }


def norm_gate() -> dict:
  """GatedNorm: a gate behind every norm before a branch; not where a combinator takes its place."""
  return {
    "rank": 0,  # r; 0: no gate; the paper has 16
    "form": "neutral",  # neutral (2σ, one at init) | published (σ, about a half at init)
  }


def mup() -> dict:
  """The sizes at which the learning rates were tuned, for muP and CompleteP; docs/scaling.md."""
  return {
    "base_width": 0,  # a d_model; 0: off
    "base_layers": 0,  # a num_layers, which also divides branches; 0: off; for `standard` alone
  }


def moe() -> dict:
  """A mixture of experts in place of the MLP; docs/moe.md."""
  return {
    "num_experts": 0,  # E; 0: every layer has an MLP
    "num_experts_per_tok": 2,  # k: experts that a token goes through
    "expert_dim": 0,  # F of an expert; 0: mlp_dim
    "num_shared_experts": 0,  # experts that all tokens go through besides
    "score": "softmax",  # softmax | sigmoid: what makes scores of the router's logits
    "norm_topk_prob": True,  # the weights of the chosen experts add up to one
    "routed_scaling_factor": 1.0,  # multiplies these weights
    "selection_bias": False,  # balance the load by a bias of the choice, see train.router_bias_rate
    "first_dense": 0,  # so many of the first layers have an MLP of mlp_dim
    "every": 1,  # layer l has experts if (l + 1) % every = 0; the others have an MLP
  }


def rope_scaling() -> dict:
  """Stretches the wavelengths of RoPE for rows longer than in pretraining."""
  return {
    "kind": "none",  # none | linear | llama3 (by wavelength) | yarn | longrope
    "factor": 1.0,  # the factor of the wavelengths
    "low_freq_factor": 1.0,  # llama3: up to this many turns in a row the whole factor counts
    "high_freq_factor": 4.0,  # llama3: above this many turns no factor counts
    "original_max_positions": 0,  # llama3, yarn, longrope: tokens of a row in pretraining
    "beta_fast": 32.0,  # yarn: above this many turns no factor counts
    "beta_slow": 1.0,  # yarn: up to this many turns in a row the whole factor counts
    "truncate": True,  # yarn: round where these two limits lie
    "attention_factor": 0.0,  # yarn, longrope: multiplies what is rotated; 0: by factor
    "short_factors": (),  # longrope: of each wavelength, in rows no longer than in pretraining
    "long_factors": (),  # longrope: of each wavelength, in longer rows
  }


def short_swa() -> dict:
  """A causal attention over the last few tokens, which is a site before the attention."""
  return {
    "window": 0,  # tokens that a token sees, itself included; 0: there is no such site
    "num_heads": 0,  # 0: as many as the attention
    "zero_init": True,  # the output projection starts at 0, as if there were no such site
  }


def value_gate() -> dict:
  """The gate of value_residual=gated: v + gate(W x) · (values of the first layer), per token."""
  return {
    "gate": "relu",  # relu | sigmoid | tanh | identity | softmax | softmax_sigmoid (over heads)
    "last_k": 0,  # how many of the last layers have it; 0: all but the first
    "zero_init": False,  # W starts at 0: with tanh and identity as if there were no gate
  }


def depth_values() -> dict:
  """The layers that value_mixing=depth mixes: those at multiples of `stride`, and recent ones."""
  return {
    "stride": 0,  # 0: num_layers / 2
    "recent": 0,  # how many of the layers just before are mixed too
    "zero_init": False,  # a learned factor per layer, 0 at first, stands before the mix
  }


def gpt2_style(m: ConfigDict) -> None:
  m.positions, m.norm, m.mlp, m.bias, m.norm_eps = "learned", "layernorm", "gelu", "all", 1e-5


def llama_style(m: ConfigDict) -> None:
  m.positions, m.norm, m.mlp, m.bias = "rope", "rmsnorm", "swiglu", "none"


def data() -> dict:
  return {
    "root": "data",  # folder of the built corpora, which all runs share; may be gs://
    "seq_len": 1024,  # T
    "corpora": {"stdlib": corpus()},  # further ones by name: data.corpora.NAME.source=...
    "tokenizer": {
      # bpe (byte level, trained on the corpora) | byte | pretrained | synthetic (symbols of a task)
      "name": "bpe",
      "vocab_size": 8192,  # V of bpe, or rows of a pretrained embedding; byte always has 257
      "train_bytes": 20_000_000,  # how much text bpe learns its merges from
      "folder": "",  # pretrained: a Hugging Face folder, a GGUF file, or OWNER/NAME of the hub
      # pretrained: what stands around a document, whose end is a target: bos | eos (one token
      # between documents) | bos_eos (one before, one behind) | auto (by the tokenizer's rules).
      "documents": "auto",
      # Whether documents become the special tokens that they spell, as chats do: text (no) | tokens
      # (but for those around documents) | with_ends (these too).
      "markup": "text",
    },
    "order_seed": -1,  # decides the order of the rows alone; -1: as config.seed
    "validation_fraction": 0.02,  # share of the documents, which their hash chooses
    "test_fraction": 0.02,
    "verify": "full",  # full | sizes: what of built files is compared before they are used
    # The fingerprint of built data under root, which are taken as they are although the sources are
    # other ones or gone; run.json of a run has it. "": data are built unless they are there.
    "built": "",
  }


def corpus() -> dict:
  return {
    # python-stdlib | file, folder or glob | tfds:NAME[/CONFIG] | synthetic:TASK[?SETTING=VALUE&...]
    "source": "python-stdlib",
    "format": "auto",  # auto (by what files hold) | text | jsonl (any JSON) | parquet
    "field": "text",  # field of JSON objects, column of Parquet, feature of a TFDS builder
    "weight": 1.0,  # share in the mixture, relative to the other corpora; 0: leave it out
  }


def optim() -> dict:
  return {
    "name": "adamw",  # adamw | muon (Muon for the kernels of the layers, AdamW for all else)
    "learning_rate": 6e-4,  # at its peak
    "schedule": "cosine",  # cosine | wsd | constant
    "warmup_steps": 100,
    "decay_fraction": 0.2,  # wsd: share of the steps in the final decay
    "final_fraction": 0.1,  # share of the peak that is left at the last step
    "b1": 0.9,
    "b2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "muon_momentum": 0.95,
    "combinator_lr_multiplier": 1.0,  # factor of the combinator's learning rate; 0: frozen
    "clip_norm": 1.0,  # 0: no clipping
    # NAME=FACTOR each: for one parameter of the combinator, beside the factor of all of them.
    "combinator_lr_multipliers": (),
  }


def train() -> dict:
  return {
    # The run starts from the parameters in this folder: the workdir of another run, a checkpoint
    # in it, or a pretrained model (configs/finetune.py has the other settings that it needs);
    # "": none. A combinator that is neutral at init continues a `standard` run. Reads that are
    # means (AttnRes) are 1/n times the stream. The function stays the same only if model.norm_eps
    # is small beside the stream's mean square / n², for example 1e-12, in both runs.
    "init_from": "",
    "hf_ignore": (),  # settings of its config.json that are not known, and that change nothing
    "steps": 1000,
    "batch_size": 32,  # rows per step, over all devices and microbatches
    "microbatches": 1,  # gradient accumulation
    "z_loss": 1e-4,
    "router_balance_loss": 0.01,  # of experts; 0: none, where a selection bias balances
    "router_z_loss": 1e-3,  # keeps the logits of routers small
    "router_bias_rate": 1e-3,  # what a step moves selection biases by
    # Compiler options: auto (what resjax/base/hardware/compiler_options.py has for the chip) |
    # none; then NAME=VALUE adds one and -NAME removes one, as in "auto,xla_a=true,-xla_b".
    "compiler_options": "auto",
    "loss_chunk": 1024,  # tokens of each data shard whose logits exist at the same time
    "log_every": 10,
    "eval_every": 200,  # steps; 0: only before the first step and after the last
    # Rows of the validation split per evaluation, at least one of each corpus; 0: all. Of several
    # corpora, bits per byte of each are recorded too, and their mean (macro_bits_per_byte).
    "eval_rows": 128,
    # Every so many steps, and at the start and the end, the run measures ranks and probabilities of
    # the input token and the next one after every layer, which tell where it shifts; 0: never.
    "alignment_every": 0,
    "alignment_rows": 16,  # rows of the validation split for that; each costs L output heads
    "sample_tokens": 64,  # tokens of a text that is sampled at the end, up to a row; 0: none
    "tensorboard": False,  # needs the extra `tensorboard`
    "wandb_project": "",  # if given, log there too; needs the extra `wandb`
    # The name of the job for ml-goodput-measurement, whose recorder tells Cloud Logging when
    # steps, batches, evaluations and saves begin; "": none. Needs the extra `goodput`.
    "goodput_job": "",
  }


def health() -> dict:
  """What a run does about steps that would harm it, and when it hangs."""
  return {
    "skip_nonfinite": True,  # skip steps whose loss or gradient norm is NaN or infinite
    "max_update": 4.0,  # a run ends when an update is this many times the parameters; 0: never
    "spike_window": 128,  # how many earlier steps a step's loss and gradient norm are held against
    "spike_sigma": 0.0,  # skip steps above their mean + spike_sigma · std; 0: none; 6 is usual
    "max_skipped": 10,  # the run ends after this many skipped steps in a row
    "watchdog_seconds": 600.0,  # after so long without progress all stacks are written; 0: never
  }


def checkpoint() -> dict:
  """When checkpoints are saved, besides after the last step and when a run is stopped."""
  return {
    "every": 200,  # steps; 0: never by steps
    "minutes": 0.0,  # since the last one, by the clock of process 0; 0: never by time
    "keep_last": 2,  # how many of the newest ones stay
    "keep_every": 0,  # checkpoints at multiples of this step are never deleted; 0: none
    "verify": True,  # compare what is read with the checksums of what was saved
    "strict": False,  # if the newest one is damaged: True: fail; False: take the one before it
  }


def mesh() -> dict:
  sizes = dict.fromkeys(("data", "fsdp", "expert", "tensor", "sequence"), 1)
  return sizes | {"data": -1}  # all remaining devices


def sharding() -> dict:
  """The name of a set of rules, and each set under its name.

  A rule names the mesh axes that split a logical axis, the outermost first; () leaves it whole.

  All sets split rows and the experts of a mixture over `expert`, and besides:

    dp            rows over `data`; every device holds all parameters.
    fsdp          rows over `data` and `fsdp`; parameters, their gradients and moments over `fsdp`.
    fsdp_tp       fsdp; heads, MLP width and vocabulary over `tensor`.
    long_context  fsdp_tp; the tokens of a row over `sequence`, and parameters over it too.
  """
  dp = {
    "batch": ("data", "expert"),  # B
    "tokens": (),  # T
    "embed": (),  # D of activations
    "layers": (),  # L of parameters
    "embed_param": (),  # D of parameters
    "vocab": (),  # V
    "heads": (),  # H and K, in parameters times C
    "mlp": (),  # F
    "experts": ("expert",),  # E
    # What splits the optimizer's moments besides what splits their parameters, such as ("data",):
    # each device updates its part, and updated parameters are gathered once per step (ZeRO-1).
    "moments": (),
  }
  fsdp = dp | {"batch": ("data", "fsdp", "expert"), "embed_param": ("fsdp",)}
  fsdp_tp = fsdp | dict.fromkeys(("vocab", "heads", "mlp"), ("tensor",))
  long_context = fsdp_tp | {"tokens": ("sequence",), "embed_param": ("fsdp", "sequence")}
  sets = {"dp": dp, "fsdp": fsdp, "fsdp_tp": fsdp_tp, "long_context": long_context}
  return {"name": "fsdp_tp", **sets}
