"""Wait for engines and judges that run already (`local.services.RunningServices`), and check them.

Used by `rstar2 serve`, `eval`, `filter` and `env check` with --endpoint and --judge. In a cluster, all parts of an
endpoint start at the same time, and an engine takes minutes to load its model; hence the waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.openai_client import ServedModel, served_models
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import JudgeUnavailable
from rstar2_train.launch.local.preflight import PreflightError
from rstar2_train.utils.auth import ENGINE_TOKEN, JUDGE_TOKEN

RETRY_SECONDS = 2.0
"""Interval of requests to a part that does not answer yet."""


class RunningServiceRejected(PreflightError):
    """An engine or judge answers, but cannot be used. The message is for the user."""


async def find_model(
    url: str,
    *,
    token: str,
    names: Sequence[str],
    accept_only: bool,
    advice: str,
    notify: Callable[[str], None] | None = None,
) -> ServedModel:
    """Return the model that the engine at `url` serves under a name in `names`, or has loaded from a folder in `names`.

    `accept_only`: if it serves exactly one model, accept that one. `advice`: end of the message if no model matches;
    the message also has the first of `names`. `notify`: wait for an engine that does not answer yet, and call this
    once. Raises RunningServiceRejected for a wrong token, a server other than vLLM, other models, and, without
    `notify`, an engine that does not answer.
    """
    models = await _list_models(url, token=token, notify=notify)
    if accept_only and len(models) == 1:
        return models[0]
    for model in models:
        if model.name in names or model.root in names:
            return model
    served = ", ".join(model.name for model in models) or "no model"
    wanted = f", not {names[0]!r}" if names else ""
    raise RunningServiceRejected(f"--endpoint {url} serves {served}{wanted}: {advice}")


async def _list_models(url: str, *, token: str, notify: Callable[[str], None] | None) -> list[ServedModel]:
    _check_url("--endpoint", url)
    notified = False
    while True:
        try:
            return await served_models(url, token=token)
        except EngineRejected as error:
            raise RunningServiceRejected(f"--endpoint {url}: {error} (token: {ENGINE_TOKEN})") from error
        except EngineUnavailable as error:
            if notify is None:
                raise RunningServiceRejected(f"--endpoint {url}: {error}") from error
            if not notified:
                notify(f"Waiting for the engine: {error}")
                notified = True
        await asyncio.sleep(RETRY_SECONDS)


def _check_url(option: str, url: str) -> None:
    """Raise RunningServiceRejected for an address to which no request can be sent: waiting would not help."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise RunningServiceRejected(f"{option} {url} is no URL of a server, such as http://127.0.0.1:8000")


async def check_judge(url: str, *, token: str, notify: Callable[[str], None] | None = None) -> None:
    """Return when the judge at `url` has a sandbox that is ready.

    `notify`: wait for a judge that is not ready, and call this once. Raises RunningServiceRejected for a wrong token,
    a server other than a judge, and, without `notify`, a judge that is not ready.
    """
    _check_url("--judge", url)
    notified = False
    async with JudgeClient(url, token or None) as judge:
        while True:
            cause = "no sandbox is ready"
            try:
                status = await judge.status()
                if "ready" not in status:
                    raise RunningServiceRejected(f"--judge {url} returned {str(status)[:200]} (token: {JUDGE_TOKEN})")
                if status["ready"]:
                    return
            except JudgeUnavailable as error:
                cause = str(error)
            if notify is None:
                raise RunningServiceRejected(f"--judge {url} is not ready: {cause}")
            if not notified:
                notify(f"Waiting for the judge: {cause}")
                notified = True
            await asyncio.sleep(RETRY_SECONDS)
