"""Errors in OpenAI's format, of `rstar2 serve` and of the endpoint of agents (`rollout/agent_program`)."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

NO_OP_VALUES: Mapping[str, Sequence[Any]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "vllm_xargs": ({},),
    "detokenize": (True,),
    "store": (False,),
    "best_of": (1,),
    "echo": (False,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "continue_final_message": (False,),
    "include_reasoning": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "documents": ([],),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "reasoning_effort": ("medium",),
    "verbosity": ("medium",),
    "chat_template_kwargs": ({},),
    "typical_p": (1,),
    "tfs": (1,),
    "top_a": (0,),
    "no_repeat_ngram_size": (0,),
    "priority": (0,),
    "early_stopping": (False,),
    "truncate_prompt_tokens": (-1,),
    "structured_outputs": ({},),
    "mm_processor_kwargs": ({},),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "return_hidden_states": (False,),
    "no_stop_trim": (False,),
    "safe_prompt": (False,),
    "extra_body": ({},),
    "reasoning": ({}, {"effort": "medium"}),
    **dict.fromkeys(("provider", "kv_transfer_params", "prompt_cache_options"), ({},)),
    **dict.fromkeys(("plugins", "transforms", "models"), ([],)),
    **dict.fromkeys(("xtc_probability", "mirostat", "dry_multiplier"), (0,)),
}
"""Unsupported parameters of OpenAI's and vLLM's chat completions, with the values that change nothing."""
LABELS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "request_id",
    "cache_salt",
)
"""Parameters for the provider of a service, which never change an answer."""

STREAM_OPTIONS: Mapping[str, Sequence[Any]] = {
    "include_usage": (True, False),
    "include_obfuscation": (True, False),
    "continuous_usage_stats": (False,),
}
"""Supported members of `stream_options`; obfuscation is an addition to the stream that no client reads."""


class ApiError(Exception):
    """An error that is returned to the client."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        """`status`: HTTP status; `param`: the invalid field of the request; `code`: OpenAI's error code."""
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """Return the JSON body of the response."""
        kind = {401: "authentication_error", 503: "service_unavailable"}.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


def reject_unsupported(given: Mapping[str, Any], more: Mapping[str, Sequence[Any]] | None = None) -> None:
    """Raise ApiError for a parameter that has an effect. `more`: values without one, besides NO_OP_VALUES."""
    no_op_values = {**NO_OP_VALUES, **(more or {})}
    for name, value in given.items():
        if value is None or name in LABELS or any(_is_same(value, no_op) for no_op in no_op_values.get(name, ())):
            continue
        allowed = f" (only {no_op_values[name][0]!r})" if name in no_op_values else ""
        remedy = "write its members next to messages" if name == "extra_body" else "remove it"
        message = f"{name}={reprlib.repr(value)[:80]} is not supported{allowed}: {remedy}"
        raise ApiError(400, message, param=name, code="unsupported_parameter")


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are equal in JSON, where true is no number. Members of null are absent ones."""
    if isinstance(value, Mapping):
        value = {name: member for name, member in value.items() if member is not None}
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
