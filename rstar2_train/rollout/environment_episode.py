"""One episode of an environment in one rollout: calls become actions, observations become texts.

Created by `remote_tools`. The reward is that of the last observation that has one.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from rstar2_train.data.problems import Problem
from rstar2_train.rollout.row_data import read_data
from rstar2_train.tools.environment import EnvironmentTools
from rstar2_train.tools.mcp_session import ServerLost
from rstar2_train.tools.openenv import Connection, ServerFull

FULL_SECONDS = 1.0
"""Pause after a server was full although an episode should have been free."""
FULL_TRIES = 120


class EnvironmentEpisode:
    """A running episode. Use as `async with`; entering it resets the environment, and raises ServerLost."""

    def __init__(self, environment: EnvironmentTools, problem: Problem, *, seed: int, name: str, rewards: bool) -> None:
        """`seed`: the same for all rollouts of a group; `name`: id of the episode.

        `rewards`: whether the reward of the rollout is that of the environment.
        """
        self._environment = environment
        self._problem = problem
        self._seed = seed
        self._name = name
        self._rewards = rewards
        self._exit_stack = AsyncExitStack()
        self._transcript = ""
        self.opening = ""
        """Text of the observation after the reset."""
        self.reward: float | None = None
        """Reward of the last observation that has one; None if none has. An episode that is done has a reward."""

    async def __aenter__(self) -> Self:
        data = await read_data(self._problem)
        arguments = data if isinstance(data, dict) else {}
        for _ in range(FULL_TRIES):
            try:
                self._connection: Connection = await self._exit_stack.enter_async_context(
                    self._environment.servers.connect()
                )
                observation = await self._connection.reset(seed=self._seed, episode=self._name, arguments=arguments)
                break
            except ServerFull:
                await self._leave()
                await asyncio.sleep(FULL_SECONDS)
            except BaseException as error:
                await self._leave(error)
                raise
        else:
            raise ServerLost(f"environment {self._environment.spec.name}: no free episode in {FULL_TRIES} tries")
        if self._connection.done:
            await self._leave()
            raise ServerLost(f"environment {self._environment.spec.name}: the episode is over after its reset")
        self.opening = self._new_text(self._environment.text(observation)[0])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    @property
    def done(self) -> bool:
        """Whether the environment has ended the episode."""
        return self._connection.done

    async def step(self, tool: str, arguments: str) -> tuple[str, bool]:
        """Take the action of a call; return the text for the model, and whether it is a tool error.

        Raises ServerLost, also for an episode that ends without a reward.
        """
        action = self._environment.action(tool, json.loads(arguments))
        observation = await self._connection.step(action)
        if observation.reward is not None:
            self.reward = observation.reward
        if observation.done and observation.reward is None and self._rewards:
            raise ServerLost(f"environment {self._environment.spec.name}: the episode ended without a reward (or NaN)")
        text, is_error = self._environment.text(observation)
        return (text if is_error else self._new_text(text)), is_error

    def _new_text(self, text: str) -> str:
        """Return the part of a text that the model has not read, if the environment repeats the whole transcript."""
        before, self._transcript = self._transcript, text
        repeats = before and len(text) > len(before) and text.startswith(before)
        return text[len(before) :].lstrip("\n") if repeats else text

    async def _leave(self, error: BaseException | None = None) -> None:
        stack, self._exit_stack = self._exit_stack, AsyncExitStack()
        if error is None:
            await stack.aclose()
        else:
            await stack.__aexit__(type(error), error, None)
