"""The model that `rstar2 serve` serves: a model folder or adapter, or the model of a job with that job's settings.

First step of `rstar2 serve` (cli/serve.py). A model in a job's state folder gets the job's prompts, tool and limits,
because a model that was trained with one prompt does poorly with another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rstar2_train.api.roles import AcceleratorSpec, ExecutorSpec, JudgeSpec, ModelSource, RolloutSpec, ToolName
from rstar2_train.api.state_dir import JobState
from rstar2_train.api.tasks import MCPServerSpec, ToolSpec
from rstar2_train.inference.server import EngineCommand, engine_command
from rstar2_train.inference.tool_call_args import tool_call_arguments
from rstar2_train.launch.adapter_model import is_adapter, whole_model
from rstar2_train.launch.model_folder import ModelNotFound, context_length, fetched_model, model_of_job, read_config
from rstar2_train.rollout.chat_format import ChatFormat
from rstar2_train.rollout.template_file import tool_parser
from rstar2_train.tools.toolset import load_toolset
from rstar2_train.weights.adapter_folder import ADAPTER

MAX_DEFAULT_CONTEXT = 32768
"""Default limit of prompt and answer together, in tokens; lower if the model's context is shorter."""


@dataclass(frozen=True, slots=True)
class ServingModel:
    """A model and its settings."""

    name: str
    """Name in the endpoint's API."""
    folder: Path
    source: ModelSource
    """Prompts and chat template."""
    rollout: RolloutSpec
    tools: list[ToolSpec]
    servers: list[MCPServerSpec]
    judge: JudgeSpec
    executor: ExecutorSpec
    config: dict[str, Any]
    """Content of its config.json."""
    context: int
    """Limit of prompt and answer together, in tokens."""
    accelerator: AcceleratorSpec = field(default_factory=lambda: AcceleratorSpec.from_vendor("None"))
    """Accelerator of this machine; that of the job may be another."""

    def chat_format(self) -> ChatFormat:
        """Return the chat format of its conversations. Raises ChatFormatError, SourceError and ServerLost.

        A conversation of a user is no episode, so a model that learned in an environment is served without it.
        """
        tools = load_toolset(self.tools, self.rollout.tool, self.servers)
        return ChatFormat.load(self.folder, self.source, tools=tools)

    def engine(self, *, port: int) -> EngineCommand:
        """Return the command line of its engine, which also parses calls of a client's own tools. Raises ValueError."""
        source = self.source
        if source.tool_parser is None:
            parser = tool_parser(self.folder, source)
            source = source.model_copy(update={"tool_parser": parser})
        arguments = self.rollout.engine_args | tool_call_arguments(source) | {"max-model-len": self.context}
        return engine_command(
            rollout=self.rollout.model_copy(update={"engine_args": arguments}),
            accelerator=self.accelerator,
            model=self.folder,
            config=self.config,
            max_model_len=self.context,
            seed=0,
            port=port,
        )


def find(
    model: str, *, jobs: Path, base: Path | None = None, notify: Callable[[str], None] = lambda _: None
) -> ServingModel:
    """Return the model that the user named.

    Args:
        model: as of `find_folder`. An adapter is merged with its base.
        jobs: folder of the state of all jobs.
        base: base of an adapter; None: the one that its config names.
        notify: called with a message before an adapter is merged.

    Raises:
        PreflightError: if there is no such model, or its adapter cannot be merged.
    """
    folder = find_folder(model, jobs=jobs)
    return _from_folder(whole_model(folder, base=base, jobs=jobs, notify=notify), named=folder)


def find_folder(model: str, *, jobs: Path) -> Path:
    """Return the folder that the user named: a model folder, an adapter, JOB, or JOB/STAGE (`tiny/rl-3`).

    A manifest in place of JOB names the job in its bucket, whose newest state is downloaded. `jobs`: folder of the
    state of all jobs. Raises PreflightError.
    """
    folder = Path(model)
    if (folder / "config.json").is_file() or is_adapter(folder):
        return folder.resolve()
    if (fetched := fetched_model(model, jobs=jobs)) is not None:
        return fetched
    name, _, stage = model.partition("/")
    state = JobState(folder if (folder / "job.json").is_file() else jobs / name)
    if not state.job_file.is_file():
        raise ModelNotFound(
            f"{model}: no such model. Pass a model folder (with config.json, tokenizer.json and *.safetensors), "
            f"an adapter, JOB or JOB/STAGE of a job in {jobs}, or the manifest of a job with storage.url."
        )
    return model_of_job(state, "" if state.root == folder else stage)


def adjusted(
    model: ServingModel,
    *,
    context: int | None = None,
    system_prompt: str | None = None,
    prompt_prefix: str | None = None,
    tool: ToolName | None = None,
    accelerator: AcceleratorSpec | None = None,
    executors: int | None = None,
) -> ServingModel:
    """Return the model with the user's settings in place of its own; None keeps its own. Raises ModelNotFound."""
    limit = context_length(model.config)
    if context is not None and limit is not None and context > limit:
        raise ModelNotFound(f"--context {context} exceeds the context of the model, {limit} tokens.")
    prompts = {"system_prompt": system_prompt, "prompt_prefix": prompt_prefix}
    given = {key: value for key, value in prompts.items() if value is not None}
    return replace(
        model,
        context=context or model.context,
        source=model.source.model_copy(update=given),
        rollout=model.rollout.model_copy(update={"tool": tool}) if tool else model.rollout,
        tools=[] if tool else model.tools,
        accelerator=accelerator or model.accelerator,
        executor=model.executor.model_copy(update={"replicas": executors}) if executors else model.executor,
    )


def _from_folder(folder: Path, *, named: Path) -> ServingModel:
    """Return the model in a folder. If the folder that the user named belongs to a job's state, its settings apply."""
    config = read_config(folder, needs_tokenizer=True)
    context = min(MAX_DEFAULT_CONTEXT, context_length(config) or MAX_DEFAULT_CONTEXT)
    trained = named.parent if named.name == ADAPTER else named
    state = JobState(trained.parents[2]) if trained.match("stages/*/model") else None
    if state is None or not state.job_file.is_file():
        return ServingModel(
            name=named.name,
            folder=folder,
            source=ModelSource(source=str(folder)),
            rollout=RolloutSpec(),
            tools=[],
            servers=[],
            judge=JudgeSpec(),
            executor=ExecutorSpec(),
            config=config,
            context=context,
        )
    job = state.job()
    return ServingModel(
        name=f"{job.metadata.name}/{trained.parent.name}",
        folder=folder,
        source=job.spec.model,
        rollout=job.spec.rollout,
        tools=job.spec.tools,
        servers=job.spec.mcp_servers,
        judge=job.spec.judge,
        executor=job.spec.executor,
        config=config,
        context=context,
    )
