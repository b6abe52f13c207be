"""Values whose names look like secrets are left out of text, and no others."""

import shlex
import sys

import pytest

from resjax.base import redaction


@pytest.mark.parametrize(
  "name",
  [
    *("WANDB_API_KEY", "HF_TOKEN", "hf-token", "AWS_SECRET_ACCESS_KEY", "apiKey", "db.password"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GITHUBTOKEN", "SSH_KEY_FILE", "PASSPHRASE"),
    *("DB_PASS", "GITHUB_PAT", "MYSQL_PWD", "http-auth"),
  ],
)
def test_names_of_secrets(name):
  assert redaction.is_secret(name)


@pytest.mark.parametrize(
  "name",
  [
    *("tokens", "config.train.sample_tokens", "config.data.tokenizer.name", "num_kv_heads"),
    *("config.checkpoint.keep_last", "PYTHONUNBUFFERED", "XLA_FLAGS", "keyboard"),
    *("PWD", "OLDPWD", "config.train.pass_over", "path", "auth_mode"),
  ],
)
def test_other_names(name):
  assert not redaction.is_secret(name)


def test_words_of_a_command():
  given = ["--env=HF_TOKEN=a 'b\n$c", "env", "X_KEY=v", "--seed=1", "--hf_token", "v", "--tokens=5"]
  shown = ["--env=HF_TOKEN=***", "env", "X_KEY=***", "--seed=1", "--hf_token", "***", "--tokens=5"]
  assert redaction.words(given) == shown
  (script,) = redaction.words(["A=1 HF_TOKEN='q r' python x.py --config.seed=2"])
  assert script == "A=1 HF_TOKEN=*** python x.py --config.seed=2"
  assert redaction.words(["--api_key", "-Abc", "--seed=1"]) == ["--api_key", "***", "--seed=1"]


@pytest.mark.parametrize(
  "value", ["it's b", 'say "x y"', "back\\slash b", "a'b\"c d", "'", "new\nline", "", "a'"]
)
def test_a_quoted_value_is_left_out_as_a_whole(value):
  script = f"export A_TOKEN={shlex.quote(value)} && run"
  assert redaction.words([script]) == ["export A_TOKEN=*** && run"]


def test_who_asks_in_a_url():
  given = "https://me:p%40w@hub.example/a?b=c@d and ssh://git@host, https://host:8080/@x"
  shown = "https://***@hub.example/a?b=c@d and ssh://***@host, https://host:8080/@x"
  assert redaction.text(given) == redaction.words([given])[0] == shown
  assert redaction.mask({"HF_ENDPOINT": "http://me:pw@hub"}) == {"HF_ENDPOINT": "http://***@hub"}


def test_a_quote_that_stays_open_hides_what_follows_it():
  assert redaction.words(["A_TOKEN='abc --seed=1"]) == ["A_TOKEN=***"]
  assert redaction.text("x A_TOKEN='abc y") == "x A_TOKEN=*** y"


def test_a_quote_around_a_setting_is_none_of_its_value():
  shown = "go on with: x '--env=A_KEY=***' -- env 'B_TOKEN=***' y"
  assert redaction.text("go on with: x '--env=A_KEY=v' -- env 'B_TOKEN=w' y") == shown


def test_text_holds_no_secret_that_this_process_was_given(monkeypatch):
  monkeypatch.setenv("SOME_TOKEN", "abcdefg")
  monkeypatch.setattr(sys, "argv", ["x", "--env=A_KEY=hijklmn o", "--api_key", "pqrstuv"])
  found = redaction.text("abcdefg, 'hijklmn o' and pqrstuv; B_SECRET=x and C=y")
  assert found == "***, '***' and ***; B_SECRET=*** and C=y"


def test_mask():
  assert redaction.mask({"A": "b", "A_TOKEN": "c"}) == {"A": "b", "A_TOKEN": "***"}
