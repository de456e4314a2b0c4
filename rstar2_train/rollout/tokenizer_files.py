"""Reads the tokenizer of a model folder and the tokens at which its turns end, and refuses files with another meaning.

A prompt, a demonstration and a rollout have the tokens that `tokenizer.json` gives their text: all of it, and no other
ones. Imports neither torch nor transformers until a tokenizer is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar2_train.capacity.config_file import CONFIG, GENERATION_CONFIG, TOKENIZER
from rstar2_train.rollout.template_file import ChatFormatError
from rstar2_train.utils.files import read_object

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

MISTRAL = "tekken.json"
"""Mistral's own form of a tokenizer, which transformers reads with mistral-common."""
PROBE = 'def f(X):\n    return {"a": [X, 1]}  # 50%\n\nEnd'
"""A text with all that a program needs: line breaks, indentation, letters of both cases, digits and signs."""
DEFAULTS = frozenset(
    {
        # Sampling and search, which the job sets.
        *("temperature", "top_p", "top_k", "top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "do_sample"),
        *("repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
        *("diversity_penalty", "length_penalty", "exponential_decay_length_penalty", "penalty_alpha", "guidance_scale"),
        *("num_beams", "num_beam_groups", "num_return_sequences", "early_stopping", "renormalize_logits"),
        *("remove_invalid_values", "low_memory", "dola_layers"),
        # Lengths, which the job sets.
        *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time"),
        # How transformers computes: caches, compilation, speculation.
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "return_legacy_cache"),
        *("compile_config", "disable_compile", "continuous_batching_config", "prefill_chunk_size"),
        *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        *("assistant_early_exit", "assistant_lookbehind", "assistant_ensemble_weight", "target_lookbehind"),
        *("prompt_lookup_num_tokens", "max_matching_ngram_size", "speculation_type", "use_mtp"),
        # What transformers returns, and tokens that the chat template writes.
        *("output_attentions", "output_hidden_states", "output_logits", "output_scores", "return_dict_in_generate"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "transformers_version"),
    }
)
"""Fields of a generation config that the settings of the job replace, or that do not change the tokens."""


_WITHOUT_TOKENS: dict[str, object] = {
    "model": {"type": "BPE", "vocab": {}, "merges": []},
    "added_tokens": [],
    "post_processor": None,
}
"""Fields of a tokenizer.json whose other parts are read alone."""
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
"""Fields of an added token that decide which text becomes it."""


RESTRICTIONS = frozenset(
    {
        *("bad_words_ids", "constraints", "force_words_ids", "forced_bos_token_id", "forced_eos_token_id"),
        *("sequence_bias", "stop_strings", "suppress_tokens"),
    }
)
"""Fields of a generation config that change the tokens. Old folders have them in config.json."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model folder. Raises ChatFormatError, which names the file and the remedy."""
    # Not AutoTokenizer: it imports torch and every generation helper, 5 s of CPU at the start of each process.
    from transformers import PreTrainedTokenizerFast

    if not (folder / TOKENIZER).is_file():
        # Without save_format transformers keeps Mistral's own file.
        form = ", save_format='hf'" if (folder / MISTRAL).is_file() else ""
        raise ChatFormatError(
            f"{folder}: the tokenizer cannot be used: there is no {TOKENIZER}: add that of the model; transformers "
            f"writes it by AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER{form})"
        )
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    except Exception as error:  # tokenizers raises its errors as plain Exception, transformers those of any kind
        raise ChatFormatError(
            f"{folder}: the tokenizer cannot be used: {TOKENIZER}, tokenizer_config.json or the chat template cannot "
            f"be read: {error}; download the folder again"
        ) from error
    if getattr(tokenizer, "split_special_tokens", False):
        raise ChatFormatError(
            f"{folder}: the tokenizer cannot be used: split_special_tokens writes special tokens as characters, so no "
            "turn has an end; remove it from tokenizer_config.json"
        )
    _check_file(folder, tokenizer)
    return tokenizer


def whole_text(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return the tokenizer behind that of transformers, which encodes each text whole, and always in the same way.

    Raises ChatFormatError for another kind of tokenizer.
    """
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise ChatFormatError(f"{type(tokenizer).__name__} is not a fast tokenizer: {TOKENIZER} is needed")
    fast: Tokenizer = tokenizer.backend_tokenizer
    # A file may have been saved with the lengths of another program, which would cut or fill each text.
    fast.no_truncation()
    fast.no_padding()
    if getattr(fast.model, "dropout", None):
        raise ChatFormatError(f"{TOKENIZER} has a dropout, so a text has random tokens: set it to null")
    text = f"\n{PROBE}\n"
    written = fast.decode(fast.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
    if written.removeprefix(" ") != text:  # some tokenizers write a space before each text
        raise ChatFormatError(
            f"{TOKENIZER} writes {text!r} as {written!r}, so neither a model nor a demonstration can have a program "
            "as it is: use a model whose tokenizer keeps case, line breaks and spaces"
        )
    return fast


def embedded_tokens(folder: Path) -> int | None:
    """Return the number of tokens that the model of a folder can read; None: no config.json states it."""
    size = _read_object(folder / CONFIG).get("vocab_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else None


def unreadable_tokens(
    tokenizer: PreTrainedTokenizerBase, embedded: int | None, *, needed: Collection[int]
) -> frozenset[int]:
    """Return the added tokens that the model cannot read, such as that of an image in a model of text.

    `embedded`: tokens that it can read; None: all. `needed`: the ends of a turn. Raises ChatFormatError if it cannot
    read one of these, or a token of the vocabulary itself.
    """
    if embedded is None or len(tokenizer) <= embedded:
        return frozenset()
    beyond = {token: text for text, token in tokenizer.get_vocab().items() if token >= embedded}
    added = tokenizer.added_tokens_decoder.keys()
    if missing := [token for token in beyond if token not in added or token in needed]:
        raise ChatFormatError(
            f"token {min(missing)} ({beyond[min(missing)]!r}) is outside the model's embedding, whose vocab_size in "
            f"config.json is {embedded}: use the tokenizer of this model"
        )
    return frozenset(beyond)


def listed_stop_ids(folder: Path, tokenizer: PreTrainedTokenizerBase, *, vocabulary: int) -> set[int]:
    """Return the ends of sequence in a model's config files.

    Raises ChatFormatError for one that is outside the vocabulary or a part of texts, and for a generation config that
    restricts the tokens.
    """
    configs = {file: _read_object(file) for file in (folder / CONFIG, folder / GENERATION_CONFIG)}
    _check_generation(configs)
    listed: set[int] = set()
    for file, config in configs.items():
        ids = config.get("eos_token_id")
        for token in ids if isinstance(ids, list) else [] if ids is None else [ids]:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocabulary:
                raise ChatFormatError(f"{file}: eos_token_id {token!r} is no token of the tokenizer; correct it")
            if token not in tokenizer.added_tokens_decoder:
                text = tokenizer.convert_ids_to_tokens(token)
                raise ChatFormatError(
                    f"{file}: eos_token_id {token} is a part of texts, {text!r}, which would end a turn: set it to a "
                    f"special token of {TOKENIZER}"
                )
            listed.add(token)
    return listed


def _read_object(file: Path) -> dict[str, Any]:
    """Return the content of a config file; empty if there is none. Raises ChatFormatError."""
    if not file.is_file():
        return {}
    try:
        return read_object(file)
    except ValueError as error:
        raise ChatFormatError(f"{error}; download it again") from error


def _check_generation(configs: Mapping[Path, Mapping[str, Any]]) -> None:
    """Raise ChatFormatError for a field that forbids or forces tokens, ends a turn at a text, or is unknown."""
    for file, name, value in ((file, *field) for file, config in configs.items() for field in config.items()):
        is_refused = name in RESTRICTIONS if file.name == CONFIG else name not in DEFAULTS
        if is_refused and not name.startswith("_") and value not in (None, [], {}, False):
            raise ChatFormatError(
                f"{file}: {name} is not applied: the engines sample from all tokens, and a turn ends at eos_token_id; "
                "remove the field"
            )


def _check_file(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ChatFormatError if transformers changed the tokenizer of the file by the fields of its config."""
    stored = json.loads((folder / TOKENIZER).read_text(encoding="utf-8"))
    if fault := next(_changes(stored, tokenizer), ""):
        raise ChatFormatError(
            f"{folder}: the tokenizer cannot be used: {fault}; correct it in tokenizer_config.json, or save the "
            f"tokenizer again, so that {TOKENIZER} has it"
        )


def _changes(stored: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Iterator[str]:
    """Yield what a tokenizer of transformers has otherwise than its file. `stored`: the content of the file."""
    fast: Tokenizer = tokenizer.backend_tokenizer
    written = type(fast).from_str(json.dumps({**stored, **_WITHOUT_TOKENS}))
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if _state(getattr(fast, part)) != _state(getattr(written, part)):
            yield f"a field of tokenizer_config.json changes the {part} of {TOKENIZER}"
    added = {entry["content"]: entry for entry in stored.get("added_tokens") or ()}
    for number, token in fast.get_added_tokens_decoder().items():
        entry, name = added.get(token.content), _name(token.content, tokenizer)
        if entry is None and _vocabulary_id(stored, token.content) != number:
            yield f"{name} is no token of {TOKENIZER}"
        elif entry is not None and entry["id"] != number:
            yield f"{name} has the number {number}, in {TOKENIZER} {entry['id']}"
        elif entry is not None and any(getattr(token, flag) != entry.get(flag, False) for flag in _FLAGS):
            yield f"{name} takes other text than in {TOKENIZER} ({', '.join(_FLAGS)})"


def _state(part: Any) -> Any:
    return None if part is None else part.__getstate__()


def _name(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a token with the name of its field in the config, if it has one."""
    names = [name for name, token in tokenizer.special_tokens_map.items() if token == text]
    return f"{names[0] if names else 'the token'} {text!r}"


def _vocabulary_id(stored: Mapping[str, Any], text: str) -> int | None:
    """Return the number of a text in the vocabulary of a tokenizer.json; None: it is not there."""
    vocabulary = stored["model"].get("vocab") or {}
    if isinstance(vocabulary, dict):
        return vocabulary.get(text)
    return next((number for number, entry in enumerate(vocabulary) if entry[0] == text), None)
