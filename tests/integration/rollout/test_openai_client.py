"""A model behind OpenAI's routes samples the same tokens as through the project's own route."""

from functools import partial

import pytest

from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.openai_client import OpenAIClient, served_models
from rstar2_train.inference.pool import EnginePool
from rstar2_train.rollout.chat_format import ChatFormat
from tests.integration.rollout.conftest import TIMES
from tests.support.engine import QUESTION, Engine
from tests.support.engine_fixtures import Models


async def test_openai_client_samples_as_engine_client(
    engine: Engine, pool: EnginePool, client: EngineClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """The same seed gives the same tokens through OpenAI's route and through the project's own."""
    await pool.update_weights(models.boot, "random/served")
    prompt = engine_chat_format.prompt_ids(QUESTION)
    connect = partial(OpenAIClient, model="policy")
    async with EnginePool([engine.url], token=engine.token, times=TIMES, connect=connect) as served:
        await served.update_weights(models.boot, "policy")
        assert served.max_model_len == pool.max_model_len
        other = served.client(engine.url)
        seen = set()
        for seed in range(4):
            options = {"max_tokens": 12, "temperature": 0.6, "seed": seed, "stop_ids": engine_chat_format.stop_ids}
            ours = await client.generate(prompt, **options)
            theirs = await other.generate(prompt, **options)
            assert (theirs.token_ids, theirs.finish_reason) == (ours.token_ids, ours.finish_reason)
            assert theirs.logprobs.tolist() == pytest.approx(ours.logprobs.tolist(), abs=1e-4)
            assert theirs.versions[0][0] == "policy"
            seen.add(tuple(theirs.token_ids))
        assert len(seen) > 1
        assert await other.limits() == await client.limits()


async def test_openai_client_faulty_endpoint_is_named(engine: Engine, pool: EnginePool) -> None:
    """A wrong token, an unreachable server and an unknown model have clear errors."""
    (model,) = await served_models(engine.url, token=engine.token)
    assert (model.name, model.root) == ("policy", str(engine.model))
    with pytest.raises(EngineRejected, match="returned 401"):
        await served_models(engine.url, token="wrong")
    with pytest.raises(EngineUnavailable, match="Cannot connect"):
        await served_models("http://127.0.0.1:1", token="")
    connect = partial(OpenAIClient, model="unknown")
    async with EnginePool([engine.url], token=engine.token, times=TIMES, connect=connect) as served:
        with pytest.raises(EngineUnavailable, match="serves policy, not 'unknown'"):
            await served.client(engine.url).weight_version()
