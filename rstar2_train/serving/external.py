"""An engine or a judge that runs already, in place of one that is started here: waited for, then taken as it is.

Used by stack.py, for `rstar2 serve --endpoint URL --judge URL`, which is what the endpoint's pod runs in a cluster
(operator: builders/endpoint.py). There all parts start at once, and an engine takes minutes to load its model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rstar2_train.inference.client import EngineRejected, EngineUnavailable
from rstar2_train.inference.openai_client import ServedModel, served_models
from rstar2_train.judge.client.client import JudgeClient
from rstar2_train.judge.types import JudgeUnavailable

LOOK_SECONDS = 2.0
"""Between two looks at a part that does not answer yet."""


@dataclass(frozen=True, slots=True)
class ExternalServices:
    """What runs already, and its tokens; an empty URL: it is started here."""

    engine: str = ""
    engine_token: str = ""
    judge: str = ""
    judge_token: str = ""


class ExternalServiceRejected(Exception):
    """A part that is there and will not do, and why; for a person to read."""


async def find_engine(url: str, *, token: str, folder: Path, say: Callable[[str], None]) -> ServedModel:
    """The model in `folder` as the engine at `url` serves it; waits until it answers.

    An engine that serves one model alone is taken to serve this one: its folder may have another name there. Raises
    Refused for a wrong token, for what is no vLLM server, and when it serves several others.
    """
    told = False
    while True:
        try:
            models = await served_models(url, token=token)
            break
        except EngineRejected as error:
            raise ExternalServiceRejected(
                f"--endpoint {url}: {error} (its token is read from RSTAR2_ENGINE_TOKEN)"
            ) from error
        except EngineUnavailable as error:
            if not told:
                say(f"waiting for the engine: {error}")
                told = True
        await asyncio.sleep(LOOK_SECONDS)
    wanted = models if len(models) == 1 else [one for one in models if one.root == str(folder)]
    if not wanted:
        names = ", ".join(one.name for one in models)
        raise ExternalServiceRejected(
            f"--endpoint {url} serves {names} and none of them from {folder}: give the engine of that model"
        )
    return wanted[0]


async def find_judge(url: str, *, token: str, say: Callable[[str], None]) -> None:
    """Wait until the judge at `url` has a sandbox that is ready. Raises Refused for a wrong token, or what is none."""
    told = False
    async with JudgeClient(url, token) as judge:
        while True:
            try:
                status = await judge.status()
                if "ready" not in status:
                    words = f"answers {str(status)[:200]} (its token is read from RSTAR2_JUDGE_TOKEN)"
                    raise ExternalServiceRejected(f"--judge {url}: {words}")
                if status["ready"]:
                    return
                why = "no sandbox is ready"
            except JudgeUnavailable as error:
                why = str(error)
            if not told:
                say(f"waiting for the judge: {why}")
                told = True
            await asyncio.sleep(LOOK_SECONDS)
