"""The untrained tiny policy: tokenizer, chat template and random weights, as a Hugging Face folder.

Written in seconds without torch or transformers: config and tokenizer as JSON, weights with safetensors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCABULARY = 640
PIECES = r"\p{N}{1,2}|\b[XYZ]\b|(?:(?!\b[XYZ]\b)[^\p{N}])+"
"""Pre-tokenizer: pairs of digits, single variables, and all other text unsplit. A call is then 10 tokens, a third
of the usual number with single digits and words. Short sequences make the task trainable in minutes. A separate token
per variable lets attention find the sentence that defines it."""

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KEY_VALUE_HEADS, HEAD = 3, 128, 256, 2, 1, 64
"""The smallest shape that learned to copy numbers; two layers did not. 0.5 M parameters."""
MAX_POSITIONS = 512

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""Messages in ChatML form, without a tool schema: the system prompt names the tool."""


def tokenizer_text(messages: Sequence[Mapping[str, str]], *, hidden: str) -> str:
    """Return a conversation in the form of the chat template, as training text of the tokenizer.

    `hidden`: regular expression of the words whose meaning the policy must learn. They are removed from the questions,
    so each takes 2 to 10 tokens. Then no number has a fixed distance from its copy, and the policy learns to copy by
    context, which a measurement showed to be far faster.
    """
    turns = []
    for message in messages:
        content = message["content"]
        if message["role"] == "user":
            content = re.sub(hidden, "", content)
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
        role = "user" if message["role"] == "tool" else message["role"]
        turns.append(f"<|im_start|>{role}\n<|im_end|>{content}<|im_end|>\n")
    return "".join(turns)


def write_policy(directory: Path, *, texts: Iterable[str], seed: int, pieces: str = PIECES) -> None:
    """Create `directory` with config, tokenizer (trained on `texts`) and random weights (determined by `seed`).

    `pieces`: pre-tokenizer of another task.
    """
    directory.mkdir(parents=True)
    _write_tokenizer(directory, texts=texts, pattern=pieces)
    _write_weights(directory, seed=seed)


def _write_tokenizer(directory: Path, *, texts: Iterable[str], pattern: str) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = [END_OF_TEXT, TURN_START, TURN_END]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Markers are removed, as in the use of the tokenizer. Every pair of digits gets its own token.
    pieces = [piece for text in texts for piece in _between_markers(text, (*specials, *MARKERS))]
    pairs = [f"{number:02d}" for number in range(100)] * 4000
    tokenizer.train_from_iterator([*pieces, *pairs], trainer=trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in MARKERS])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(directory / "tokenizer_config.json", settings)
    ids = {"eos_token_id": tokenizer.token_to_id(TURN_END), "pad_token_id": tokenizer.token_to_id(END_OF_TEXT)}
    _write_json(
        directory / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KEY_VALUE_HEADS,
            "head_dim": HEAD,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITIONS,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            **ids,
        },
    )
    _write_json(directory / "generation_config.json", ids)


def _between_markers(text: str, markers: tuple[str, ...]) -> list[str]:
    pieces = [text]
    for marker in markers:
        pieces = [part for piece in pieces for part in piece.split(marker) if part]
    return pieces


def _write_weights(directory: Path, *, seed: int) -> None:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(seed)

    def normal(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns), dtype=np.float32) * (0.02 * scale)).astype(np.float32)

    residual = (2 * LAYERS) ** -0.5  # each layer adds to the stream twice
    weights = {
        "model.embed_tokens.weight": normal(VOCABULARY, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
    }
    for index in range(LAYERS):
        layer = f"model.layers.{index}."
        weights |= {
            layer + "self_attn.q_proj.weight": normal(HEADS * HEAD, HIDDEN),
            layer + "self_attn.k_proj.weight": normal(KEY_VALUE_HEADS * HEAD, HIDDEN),
            layer + "self_attn.v_proj.weight": normal(KEY_VALUE_HEADS * HEAD, HIDDEN),
            layer + "self_attn.o_proj.weight": normal(HIDDEN, HEADS * HEAD, residual),
            layer + "self_attn.q_norm.weight": np.ones(HEAD, np.float32),
            layer + "self_attn.k_norm.weight": np.ones(HEAD, np.float32),
            layer + "mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN),
            layer + "mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN),
            layer + "mlp.down_proj.weight": normal(HIDDEN, INTERMEDIATE, residual),
            layer + "input_layernorm.weight": np.ones(HIDDEN, np.float32),
            layer + "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
