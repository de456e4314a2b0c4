"""The files of a tokenizer: what would change the tokens of a text without an error is switched off or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers

from rstar2_train.api.job import AgenticRLJob
from rstar2_train.api.roles import ModelSource
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.rollout.template_check import find_template_errors
from rstar2_train.rollout.template_file import tool_parser
from tests.support.chat_templates import CHATML
from tests.support.model_turns import tool_turn_ids
from tests.support.tokenizer_folder import TOKENS, write_tokenizer

Change = Callable[[Path], object]
HARMONY = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
"""A turn of GPT-OSS has channels, of which the template writes the last."""
MISTRAL = CHATML + "{# [TOOL_CALLS] #}"
COUNTS = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>Round {{ loop.index // 2 }}\n{{ m.content }}"
    "{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)
"""Numbers the turns, as that of ChatGLM2 does."""
LOSSES: tuple[Callable[[Any], object], ...] = (
    lambda own: setattr(own, "normalizer", normalizers.Lowercase()),
    lambda own: setattr(own, "normalizer", normalizers.Replace("\n", " ")),
    lambda own: setattr(own, "normalizer", normalizers.Replace(Regex(" {2,}"), " ")),
    lambda own: setattr(own, "decoder", None),
    lambda own: setattr(own, "pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit()])),
)
"""Changes of a tokenizer after which a text is not what its tokens are."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without weights."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "vocab_size": TOKENS + 5}))
    return write_tokenizer(tmp_path)


def files(**contents: Any) -> Change:
    """Return the change that writes files. `contents`: stem -> text, or JSON content."""

    def write(folder: Path) -> None:
        for stem, content in contents.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{stem}.json").write_text(text)

    return write


def tokenizer(**changes: Any) -> Change:
    """Return the change that writes another tokenizer. `changes`: as of `write_tokenizer`."""
    return lambda folder: write_tokenizer(folder, **changes)


def jinja(content: bytes) -> Change:
    return lambda folder: (folder / "chat_template.jinja").write_bytes(content)


def generation(**fields: Any) -> Change:
    return files(generation_config={"eos_token_id": TOKENS - 1, **fields})


def add_channels(own: Any) -> None:
    """Add the tokens of channels, which the config of GPT-OSS does not list."""
    own.add_special_tokens(["<|start|>", "<|channel|>", "<|message|>", "<|end|>"])


@pytest.mark.parametrize(
    "change",
    [
        lambda tokenizer: tokenizer.enable_truncation(16),
        lambda tokenizer: tokenizer.enable_padding(length=2000, pad_id=256),
        lambda tokenizer: tokenizer.enable_padding(pad_to_multiple_of=64, direction="left", pad_id=256),
    ],
)
@pytest.mark.parametrize("text", ["word " * 30, "word " * 2000])
def test_lengths_saved_in_a_tokenizer_do_not_apply(
    folder: Path, tmp_path: Path, change: Callable[[Any], object], text: str
) -> None:
    """Another program's truncation and padding are not those of a prompt."""
    expected = ChatFormat.load(folder).prompt_ids(text)
    assert len(expected) > len(text)
    changed = ChatFormat.load(write_tokenizer(folder, change=change))
    assert changed.prompt_ids(text) == expected
    assert tool_turn_ids(changed, [text])[-12:] == tool_turn_ids(ChatFormat.load(write_tokenizer(folder)), [text])[-12:]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), "there is no tokenizer.json: add"),
        (lambda folder: (folder / "tokenizer.json").rename(folder / "tekken.json"), "(FOLDER, save_format='hf')"),
        (files(tokenizer="{"), "tokenizer_config.json or the chat template cannot be read"),
        (files(tokenizer="[]"), "tokenizer_config.json or the chat template cannot be read"),
        (files(tokenizer_config="{"), "tokenizer_config.json or the chat template cannot be read"),
        (files(tokenizer_config="[]"), "tokenizer_config.json or the chat template cannot be read"),
        (tokenizer(split_special_tokens=True), "remove it from tokenizer_config.json"),
        (tokenizer(change=lambda own: setattr(own.model, "dropout", 0.1)), "has a dropout"),
        (jinja(b"{# \xe9 #}"), "or the chat template cannot be read: 'utf-8' codec can't decode byte 0xe9"),
        *((tokenizer(change=change), "neither a model nor a demonstration can") for change in LOSSES),
        (tokenizer(template=COUNTS), "after the second, but a rollout has the same text between"),
        (tokenizer(eos_token="<|nowhere|>"), "eos_token '<|nowhere|>' is no token of tokenizer.json"),
        (files(config={"vocab_size": TOKENS - 1}), "token 258 ('<|im_end|>') is outside the model's embedding"),
        (files(config={"vocab_size": 200}), "token 200 ("),
        (files(config={"vocab_size": TOKENS, "eos_token_id": TOKENS}), "config.json: eos_token_id 259 is no token"),
        (
            files(config={"vocab_size": TOKENS, "eos_token_id": 2}),
            "eos_token_id 2 is a part of texts, '#', which",
        ),
        (generation(eos_token_id=[258, 65]), "generation_config.json: eos_token_id 65 is a part of texts, 'b', which"),
        (files(generation_config="{"), "generation_config.json cannot be read"),
        (files(generation_config="[]"), "generation_config.json must be a JSON object, not list"),
        (generation(eos_token_id="258"), "generation_config.json: eos_token_id '258' is no token"),
        (files(config={"forced_eos_token_id": 258}), "config.json: forced_eos_token_id is not applied"),
        (generation(stop_strings=["STOP"]), "stop_strings is not applied"),
        (generation(forced_bos_token_id=3), "forced_bos_token_id is not applied"),
        (generation(forced_eos_token_id=[258]), "forced_eos_token_id is not applied"),
        (generation(suppress_tokens=[1]), "suppress_tokens is not applied"),
        (generation(bad_words_ids=[[5]]), "bad_words_ids is not applied"),
        (generation(sequence_bias=[[[5], 1.0]]), "sequence_bias is not applied"),
        (generation(unheard_of=1), "unheard_of is not applied"),
        (tokenizer(template=None), "no chat template: add chat_template.jinja"),
        (tokenizer(template="{% if"), "cannot render"),
        (tokenizer(template="{{ raise_exception('no') }}"), "no: set spec.model.chatTemplate to another template"),
        (tokenizer(template=HARMONY, change=add_channels), "writes '<|channel|>final<|message|>' between the start"),
        (tokenizer(template=[{"name": "rag", "template": CHATML}]), "no chat template 'default' among rag"),
        (tokenizer(template=["x"]), "cannot be"),
        (
            lambda folder: files(chat_template={"chat_template": CHATML})(write_tokenizer(folder, template=None)),
            "chat_template.json is an old form",
        ),
    ],
)
def test_files_of_another_meaning_are_refused(folder: Path, change: Change, reason: str) -> None:
    """Each has its file, its reason and its remedy, also for a job that has no demonstrations."""
    job = AgenticRLJob.model_validate(
        {
            "metadata": {"name": "j", "uid": "u"},
            "spec": {
                "model": {"source": str(folder)},
                "stages": [{"name": "rl", "type": "GRPO", "grpo": {"data": str(folder / "rows.jsonl"), "steps": 1}}],
            },
        }
    )
    assert find_template_errors(job) == {}
    change(folder)
    with pytest.raises(ChatFormatError) as refusal:
        ChatFormat.load(folder)
    assert reason in str(refusal.value) and str(folder) in str(refusal.value)
    assert find_template_errors(job) == {"spec.model.source": str(refusal.value)}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "do_sample": True, "repetition_penalty": 1.05},
        {"suppress_tokens": None, "bad_words_ids": [], "transformers_version": "5.0", "_from_model_config": True},
        {"bos_token_id": 1, "pad_token_id": 2, "max_new_tokens": 2048, "no_repeat_ngram_size": 3},
    ],
)
def test_sampling_defaults_are_replaced_by_the_job(folder: Path, fields: dict[str, Any]) -> None:
    """They are those of other programs: the manifest has the sampling of a job."""
    generation(**fields)(folder)
    assert ChatFormat.load(folder).stop_ids == [TOKENS - 1]


def test_token_that_the_model_cannot_read_is_refused_in_a_text(folder: Path) -> None:
    """Such as that of an image, in a model of text: the folder is used, and a text with it is refused."""
    write_tokenizer(folder, change=lambda own: own.add_special_tokens(["<image>"]))
    files(config={"vocab_size": TOKENS})(folder)
    own = ChatFormat.load(folder)
    assert own.prompt_ids("an image")
    assert tool_turn_ids(own, ["<image>"]), "an output of a tool is escaped"
    with pytest.raises(ChatFormatError, match="the text contains '<image>'"):
        own.prompt_ids("an <image>")


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        (MISTRAL, "mistral"),
        ([{"name": "default", "template": MISTRAL}], "mistral"),
        ([{"name": "tool_use", "template": MISTRAL}, {"name": "default", "template": CHATML}], "hermes"),
        (
            [{"name": "tool_use", "template": CHATML + "<tool_call>"}, {"name": "default", "template": MISTRAL}],
            "mistral",
        ),
    ],
)
def test_form_of_calls_is_that_of_the_rendered_template(folder: Path, template: Any, parser: str) -> None:
    """Rollouts and `rstar2 serve` read it from the template that renders a conversation, among several with names."""
    own = ChatFormat.load(write_tokenizer(folder, template=template))
    assert own.template.parser == tool_parser(folder, ModelSource(source=str(folder))) == parser
    plain = ChatFormat.load(write_tokenizer(folder))
    assert own.prompt_ids("x", raw_prompt=True) == plain.prompt_ids("x", raw_prompt=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: setattr(own, "pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=True)),
        lambda own: own.add_special_tokens([AddedToken("<|im_end|>", special=True, rstrip=True)]),
    ],
    ids=["a space before a text", "a token takes the white space after it"],
)
def test_conversation_has_the_tokens_of_its_whole_text(folder: Path, change: Callable[[Any], object]) -> None:
    """Turns and replies are encoded one by one, and have the tokens that they have in the text of the template."""
    messages = [{"role": role, "content": f"of {role}"} for role in ("user", "assistant") * 2]
    own = ChatFormat.load(write_tokenizer(folder, change=change))
    whole = own.encode(str(own.tokenizer.apply_chat_template(messages, tokenize=False)))
    ids = own.encode_conversation(messages).token_ids
    assert ids == whole[: len(ids)] and own.end_of_turn_id == ids[-1]
