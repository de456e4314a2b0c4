"""Checks the arguments of a client's call: a prompt has them as they are written, or the request is refused. Pure."""

from __future__ import annotations

import json
from typing import Any

from rstar2_train.data.json_values import json_decoder
from rstar2_train.data.readers import json_value
from rstar2_train.utils.api_error import ApiError
from rstar2_train.utils.text import lone_surrogate

CALL_HINT = "must be a call with function.name and function.arguments (a JSON object as text)"


def check_arguments(arguments: Any, *, at: str) -> None:
    """Raise ApiError unless `arguments` is the text of a JSON object with exact numbers and each key once.

    `at` names the call.
    """
    try:
        value = json_decoder().decode(arguments) if isinstance(arguments, str) else None
        written = json.dumps(json_value(value, "function.arguments", exact=True), ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"{at}: {error}", param="messages") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"{at} {CALL_HINT}", param="messages")
    if lone_surrogate(written):
        raise ApiError(400, f"{at} has a lone surrogate, which is not a valid character", param="messages")
