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
from rstar2_train.data.problems import DataError, Problem
from rstar2_train.rollout.chat_format import ChatFormat, ChatFormatError
from rstar2_train.rollout.collector import encode_prompts
from rstar2_train.rollout.template_check import find_template_errors, find_template_notes
from rstar2_train.rollout.template_file import tool_parser
from tests.support.chat_templates import CHATML, QWEN35
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
LATE = CHATML.replace("{{ '<|im", "{{ ('LATE' if loop.index0 > 5 and m.role == 'user' else '') + '<|im", 1)
"""Writes a text before the fourth question."""
LAST = CHATML.replace("+ m.content +", "+ ('be brief\\n' if loop.last and m.role == 'user' else '') + m.content +")
"""Writes a text into the last question only."""
METHOD = "{{ messages[0].items }}"
"""A method without parentheses, which Jinja writes with its place in memory."""
LOSSES: tuple[Callable[[Any], object], ...] = (
    lambda own: setattr(own, "normalizer", normalizers.Lowercase()),
    lambda own: setattr(own, "normalizer", normalizers.Replace("\n", " ")),
    lambda own: setattr(own, "normalizer", normalizers.Replace(Regex(" {2,}"), " ")),
    lambda own: setattr(own, "normalizer", normalizers.Strip()),
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


END = {"content": "<|im_end|>", "lstrip": False, "rstrip": True, "normalized": False, "single_word": False}
"""An end of turn that takes the white space after it, as that of the file does not."""


def older_tokenizer(folder: Path) -> None:
    """Let the config name another file, which transformers reads in place of tokenizer.json."""
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    write_tokenizer(folder, change=lambda own: setattr(own, "pre_tokenizer", digits))
    (folder / "tokenizer.json").rename(folder / "tokenizer.4.0.0.json")
    write_tokenizer(folder, fast_tokenizer_files=["tokenizer.4.0.0.json"])


def stored(change: Callable[[list[dict[str, Any]]], object]) -> Change:
    """Return the change of the added tokens in tokenizer.json."""

    def write(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        change(content["added_tokens"])
        files(tokenizer=content)(folder)

    return write


def generation(**fields: Any) -> Change:
    return files(generation_config={"eos_token_id": TOKENS - 1, **fields})


def add_channels(own: Any) -> None:
    """Add the tokens of channels, which the config of GPT-OSS does not list."""
    own.add_special_tokens(["<|start|>", "<|channel|>", "<|message|>", "<|end|>"])


def sampling_job(folder: Path, objective: dict[str, Any] | None = None, **spec: Any) -> AgenticRLJob:
    """Return a job with engines whose model is a folder."""
    grpo = {"data": str(folder / "rows.jsonl"), "steps": 1, "objective": objective}
    return AgenticRLJob.model_validate(
        {
            "metadata": {"name": "j", "uid": "u"},
            "spec": {
                "model": {"source": str(folder)},
                "stages": [{"name": "rl", "type": "GRPO", "grpo": grpo}],
                **spec,
            },
        }
    )


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
        (tokenizer(template=COUNTS), "after turn 2, but"),
        (tokenizer(template=LATE), "after turn 3, but"),
        (tokenizer(template=CHATML + "{{ ['a', 'b']|random }}"), "calls random, so a prompt has another text each"),
        (tokenizer(template=CHATML + "{{ [['a']]|map('random')|join }}"), "calls random, so"),
        (tokenizer(template=CHATML + "{% if false %}{{ lipsum() }}{% endif %}"), "calls lipsum, so"),
        (tokenizer(template=METHOD + CHATML), "the object '<built-in method items of dict object>'"),
        (tokenizer(template="{{ raise_exception }}" + CHATML), "another text in each process"),
        (tokenizer(template="{{ messages|map(attribute='role') }}" + CHATML), "<generator object"),
        (tokenizer(eos_token="<|nowhere|>"), "eos_token '<|nowhere|>' is no token of tokenizer.json"),
        (tokenizer(pad_token="[PAD]"), "pad_token '[PAD]' is no token of tokenizer.json"),
        (tokenizer(extra_special_tokens=["<|a|>"]), "the token '<|a|>' is no token of tokenizer.json; correct"),
        (
            tokenizer(added_tokens_decoder={"258": END}),
            "eos_token '<|im_end|>' takes other text than in tokenizer.json",
        ),
        (tokenizer(added_tokens_decoder={"256": END | {"content": "<|b|>"}}), "the token '<|b|>' is no token of"),
        (stored(lambda added: added[2].update(id=262)), "eos_token '<|im_end|>' has the number 258, in tokenizer.json"),
        (
            stored(lambda added: added.append({**added[0], "content": "<|c|>"})),
            "the token '<|c|>' has the number 259, in",
        ),
        (stored(lambda added: added[2].update(single_word=True)), "'<|im_end|>' next to a word is no token, so no"),
        (older_tokenizer, "a field of tokenizer_config.json changes the pre_tokenizer of tokenizer.json"),
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
    job = sampling_job(folder)
    assert find_template_errors(job) == {}
    change(folder)
    with pytest.raises(ChatFormatError) as refusal:
        ChatFormat.load(folder)
    assert reason in str(refusal.value) and str(folder) in str(refusal.value)
    assert find_template_errors(job) == {"spec.model.source": str(refusal.value)}


@pytest.mark.parametrize(
    "filtered",
    ["m.content|striptags", "m.content[:9000]", "m.content|truncate(9000)", "m.content|indent(2)"],
)
def test_template_that_changes_a_problem_is_refused(folder: Path, filtered: str) -> None:
    """The model would get another problem than its reward compares: before the start, and for each row."""
    write_tokenizer(folder, template=CHATML.replace("m.content", f"({filtered})"))
    [message] = find_template_errors(sampling_job(folder)).values()
    assert "does not write the content of a" in message and "move it" in message
    with pytest.raises(DataError, match="problem row-1: the chat template does not write the content"):
        encode_prompts([Problem(id="row-1", problem="A <b>, " + "x\n" * 9000, answer="1")], ChatFormat.load(folder))


@pytest.mark.parametrize(("template", "has_note"), [(CHATML, False), (QWEN35, False), (LAST, True)])
def test_template_that_changes_earlier_messages_has_a_note(folder: Path, template: str, has_note: bool) -> None:
    """A rollout keeps the text of its first turns, which other programs render again."""
    write_tokenizer(folder, template=template)
    notes = find_template_notes(folder, ModelSource(source=str(folder)))
    assert any("changes earlier messages when later ones follow" in note for note in notes) == has_note


def test_address_in_a_message_is_no_object_of_the_template(folder: Path) -> None:
    """A question may have the output of a program."""
    text = "what is <b> and\n1 < 2 <function f at 0x7f00>?"
    assert text in ChatFormat.load(folder).decode(ChatFormat.load(folder).prompt_ids(text))


def test_time_of_a_template_is_that_of_the_day(folder: Path) -> None:
    """Prompts of one day are equal."""
    write_tokenizer(folder, template="{{ strftime_now('%H:%M:%S.%f') }}" + CHATML)
    own = ChatFormat.load(folder)
    assert own.decode(own.prompt_ids("x")).startswith("00:00:00.000000")


@pytest.mark.parametrize(
    ("kind", "cls", "has_note"),
    [
        ("qwen3", "PreTrainedTokenizerFast", False),
        ("llama", "LlamaTokenizer", True),
        ("llama", "LlamaTokenizerFast", True),
        ("llama", "GemmaTokenizer", True),
        ("qwen2", "PreTrainedTokenizerFast", True),  # transformers takes Qwen2Tokenizer in any case
    ],
)
def test_tokenizer_of_other_programs_has_a_note(folder: Path, kind: str, cls: str, has_note: bool) -> None:
    """A job has the tokens of tokenizer.json, whichever class its config names. A served teacher is asked for them."""
    expected = ChatFormat.load(folder).prompt_ids("x = 1 \u00e9 e\u0301")
    files(config={"model_type": kind, "vocab_size": TOKENS})(write_tokenizer(folder, tokenizer_class=cls))
    assert ChatFormat.load(folder).prompt_ids("x = 1 \u00e9 e\u0301") == expected
    notes = find_template_notes(folder, ModelSource(source=str(folder)))
    assert [("PreTrainedTokenizerFast" in note, "other tokens" in note) for note in notes] == [(True, True)] * has_note
    job = sampling_job(folder)
    assert find_template_errors(job) == {}
    objective = {"type": "Distillation", "teacher": {"source": str(folder)}}
    job = sampling_job(folder, objective, teacher={})
    assert any("or remove spec.teacher" in error for error in find_template_errors(job).values()) == has_note


@pytest.mark.parametrize(
    "fields",
    [
        {"auto_map": {"AutoTokenizer": ["x.Y", None]}, "tokenizer_class": "Y"},
        {"tokenizer_class": "T5Tokenizer"},
        {"tokenizer_class": 3},
    ],
)
def test_tokenizer_with_which_no_engine_starts_is_refused(folder: Path, fields: dict[str, Any]) -> None:
    """Custom code, which engines do not run, and classes for other files."""
    files(config={"model_type": "llama", "vocab_size": TOKENS})(write_tokenizer(folder, **fields))
    [message] = find_template_errors(sampling_job(folder)).values()
    assert "no engine starts" in message and "remove auto_map" in message


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
