"""A model behind OpenAI's routes samples the same tokens as through the project's own route."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from rstar2_train.api.contracts import StageFailed
from rstar2_train.api.objectives import Teacher
from rstar2_train.inference.client import EngineClient
from rstar2_train.inference.engine_errors import EngineRejected, EngineUnavailable
from rstar2_train.inference.openai_client import OpenAIClient, served_models
from rstar2_train.inference.pool import EnginePool
from rstar2_train.inference.weight_update import FolderUpdate
from rstar2_train.orchestrator.pipeline.remote_teacher import RemoteTeacher
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.teacher_check import TeacherServers
from rstar2_train.trainer.types import TokenSequence
from rstar2_train.utils.auth import TEACHER_TOKEN
from tests.integration.rollout.conftest import TIMES
from tests.support.adapters import merged_scores
from tests.support.engine import QUESTION, Engine
from tests.support.engine_fixtures import Models


async def test_openai_client_samples_as_engine_client(
    engine: Engine, pool: EnginePool, client: EngineClient, engine_chat_format: ChatFormat, models: Models
) -> None:
    """The same seed gives the same tokens through OpenAI's route and through the project's own."""
    await pool.push(FolderUpdate.make(models.boot, "random/served"))
    prompt = engine_chat_format.prompt_ids(QUESTION)
    connect = partial(OpenAIClient, model="policy")
    async with EnginePool([engine.url], token=engine.token, times=TIMES, connect=connect) as served:
        await served.push(FolderUpdate.make(models.boot, "policy"))
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


async def test_teacher_rates_tokens_as_transformers(
    engine: Engine, pool: EnginePool, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's server rates every token of a rollout: with tool output and the special tokens, at temperature 1."""
    monkeypatch.setenv(TEACHER_TOKEN, engine.token)
    await pool.push(FolderUpdate.make(models.other, "random/teacher"))
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(models.boot))
    draw = np.random.default_rng(0)
    rows = [[len(tokenizer) - 1, *draw.integers(0, len(tokenizer), size=length).tolist()] for length in (1, 60, 17)]
    sequences = [TokenSequence(np.array(row, np.int32), np.arange(len(row)) > 0) for row in rows]
    async with RemoteTeacher(TeacherServers.of_endpoint(Teacher(endpoint=engine.url))) as teacher:
        await teacher.check(tokenizer, models.boot, longest=200)
        [group] = await teacher.rate([sequences])
    for rated, expected in zip(group, merged_scores(models.other, {}, rows, scale=1), strict=True):
        assert rated.reference_logprobs is not None
        assert rated.reference_logprobs.tolist() == pytest.approx([0.0, *expected], abs=1e-4)


def swapped(folder: Path, boot: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a folder with two of its tokens exchanged."""
    content: dict[str, Any] = json.loads((boot / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.__getitem__)[60:62]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


async def test_teacher_of_another_kind_is_refused(
    engine: Engine, pool: EnginePool, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tokenizer, a smaller vocabulary, a shorter context, another name, a wrong token: each with a remedy."""
    monkeypatch.setenv(TEACHER_TOKEN, engine.token)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(models.boot))
    large = tmp_path / "large"
    large.mkdir()
    (large / "config.json").write_text(json.dumps({"vocab_size": 10**5}), encoding="utf-8")
    async with RemoteTeacher(TeacherServers.of_endpoint(Teacher(endpoint=engine.url))) as teacher:
        for other, folder, longest, reason in (
            (swapped(tmp_path, models.boot), models.boot, 100, "use a teacher with the same tokenizer"),
            (tokenizer, large, 100, "the teacher must take each of the 100,000 tokens of the model"),
            (tokenizer, models.boot, 10**6, "raise --max-model-len of the server, or lower maxResponseTokens"),
        ):
            with pytest.raises(StageFailed, match=reason) as caught:
                await teacher.check(other, folder, longest=longest)
            assert (caught.value.reason, caught.value.retryable) == ("BadConfiguration", False)
    async with RemoteTeacher(TeacherServers.of_endpoint(Teacher(endpoint=engine.url, model="big"))) as teacher:
        with pytest.raises(StageFailed, match=r"serves policy, not 'big': correct teacher\.model"):
            await teacher.check(tokenizer, models.boot, longest=100)
    monkeypatch.setenv(TEACHER_TOKEN, "wrong")
    async with RemoteTeacher(TeacherServers.of_endpoint(Teacher(endpoint=engine.url))) as teacher:
        with pytest.raises(StageFailed, match=r"returned 401.*set RSTAR2_TEACHER_TOKEN"):
            await teacher.check(tokenizer, models.boot, longest=100)
