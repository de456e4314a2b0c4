"""Runs a simulation: the scheduler of the rollouts, trajectories with turns and tool calls, and simulated engines.

A step's trajectories are submitted together, as the collector does. With `max_staleness`, the next step's trajectories
are submitted while the update of earlier steps is pending, so that they fill the engines at the end of a step.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rstar2_train.inference.policies import SchedulingPolicy
from rstar2_train.inference.scheduler import Scheduler
from rstar2_train.simulation.bound import lower_bound
from rstar2_train.simulation.engine import EngineSample, SimulatedEngine
from rstar2_train.simulation.hardware import Hardware
from rstar2_train.simulation.workload import SimulatedTrajectory

OBSERVE_SECONDS = 5.0
"""Interval between two reports of live figures; the interval of the pool's checks."""
_Event = Literal["engine", "tool", "observe", "update"]


@dataclass(slots=True)
class _Progress:
    """A trajectory that has not finished."""

    trajectory: SimulatedTrajectory
    step: int
    turn: int = 0
    context: int = 0
    engine: SimulatedEngine | None = None
    """The engine of its scheduler slot; None while it waits."""
    in_tool: bool = False
    sampled: int = 0
    """Tokens of the current turn that an engine sampled before the trajectory left it."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The figures of one simulation."""

    makespan: float
    """Seconds from the start to the end of the last trajectory, or of the last update."""
    step_seconds: list[float]
    """Seconds from the end of the step before to the end of each step, with its update."""
    bound: float
    """Lower bound of the rollout seconds of all steps, without updates."""
    turns: int
    preemptions: int
    recomputed_tokens: int
    displaced: int
    """Trajectories that were moved away from a nearly full or lagging engine."""
    idle_share: float
    """Share of the engines' time without a sequence, until the last trajectory ends."""
    tail_seconds: float
    """Seconds between the start of the last trajectory and the end of the last one."""
    samples: dict[str, list[EngineSample]] = field(repr=False)
    """State of each engine at each report of live figures."""

    @property
    def makespan_over_bound(self) -> float:
        """Makespan / lower bound."""
        return self.makespan / self.bound

    def figures(self) -> dict[str, object]:
        """Return the figures as JSON values, without the samples."""
        return {
            "makespan_s": self.makespan,
            "makespan_over_bound": self.makespan_over_bound,
            "step_s": self.step_seconds,
            "turns": self.turns,
            "preemptions": self.preemptions,
            "preempted_share": self.preempted_share,
            "recomputed_tokens": self.recomputed_tokens,
            "displaced": self.displaced,
            "idle_share": self.idle_share,
            "tail_s": self.tail_seconds,
        }

    @property
    def preempted_share(self) -> float:
        """Preemptions per turn."""
        return self.preemptions / max(1, self.turns)


class _Simulation:
    def __init__(
        self,
        steps: Sequence[Sequence[SimulatedTrajectory]],
        hardware: Hardware,
        policy: SchedulingPolicy,
        *,
        engines: int,
        max_staleness: int,
        update_seconds: float,
        observe_seconds: float,
    ) -> None:
        self.now = 0.0
        self.observe_seconds = observe_seconds
        self.steps, self.hardware = steps, hardware
        self.max_staleness, self.update_seconds = max_staleness, update_seconds
        self.scheduler: Scheduler[int] = Scheduler(policy=policy, clock=lambda: self.now)
        self.engines = {f"engine-{at}": SimulatedEngine(f"engine-{at}", hardware) for at in range(engines)}
        for name in self.engines:
            self.scheduler.add_engine(name, capacity=hardware.kv_tokens, block=hardware.block_tokens)
        self.unfinished: dict[int, _Progress] = {}
        self.open = [len(step) for step in steps]
        self.submitted = self.trained = 0
        self.is_updating = False
        self.ends: list[float] = []
        self.starts: list[float] = []
        self.displaced = 0
        self.last_end = 0.0
        self._events: list[tuple[float, int, _Event, int | str]] = []
        self._count = itertools.count()
        self._keys = itertools.count()
        self._due: dict[str, float] = {}

    def run(self) -> None:
        self.submit_steps()
        self.push(self.observe_seconds, "observe", 0)
        while self.trained < len(self.steps):
            time, _, kind, target = heapq.heappop(self._events)
            if kind == "engine" and self._due.get(str(target)) != time:
                continue
            self.now = time
            if kind == "engine":
                self.advance(self.engines[str(target)])
            elif kind == "tool":
                self.end_tool(int(target))
            elif kind == "observe":
                self.observe()
            else:
                self.end_update()

    def push(self, time: float, kind: _Event, target: int | str) -> None:
        heapq.heappush(self._events, (time, next(self._count), kind, target))

    def schedule_event(self, engine: SimulatedEngine) -> None:
        due = engine.next_event()
        self._due[engine.name] = due
        if due < float("inf"):
            self.push(due, "engine", engine.name)

    def submit_steps(self) -> None:
        while self.submitted < len(self.steps) and self.submitted <= self.trained + self.max_staleness:
            for trajectory in self.steps[self.submitted]:
                key = next(self._keys)
                self.unfinished[key] = _Progress(trajectory, self.submitted, context=trajectory.prompt_tokens)
                self.scheduler.submit(
                    key,
                    tokens=trajectory.prompt_tokens + trajectory.budget,
                    prompt_tokens=trajectory.prompt_tokens,
                    group=trajectory.group,
                )
            self.submitted += 1
        self.assign()

    def assign(self) -> None:
        for key, name in self.scheduler.assign():
            progress = self.unfinished[key]
            progress.engine = self.engines[name]
            self.starts.append(self.now)
            if not progress.in_tool:
                self.start_turn(key)

    def start_turn(self, key: int) -> None:
        progress = self.unfinished[key]
        context = progress.context + progress.sampled
        name = self.scheduler.next_turn(key, context=context)
        if name is None:
            return
        engine = progress.engine = self.engines[name]
        self.touch(engine)
        engine.add(key, context=context, tokens=progress.trajectory.turns[progress.turn].tokens - progress.sampled)
        self.schedule_event(engine)

    def touch(self, engine: SimulatedEngine) -> None:
        """Move an engine to the present; turns that end exactly now are handled at their own event."""
        if engine.time < self.now:
            self.end_turns(engine, engine.advance(min(self.now, max(engine.time, engine.next_event()))))
            engine.time = self.now

    def advance(self, engine: SimulatedEngine) -> None:
        self.end_turns(engine, engine.advance(self.now))
        self.schedule_event(engine)

    def end_turns(self, engine: SimulatedEngine, keys: Sequence[int]) -> None:
        for key in keys:
            progress = self.unfinished[key]
            turn = progress.trajectory.turns[progress.turn]
            progress.context += turn.tokens + turn.tool_tokens
            progress.turn += 1
            progress.sampled = 0
            if progress.turn < len(progress.trajectory.turns):
                progress.in_tool = True
                self.push(self.now + turn.tool_seconds, "tool", key)
            else:
                engine.drop(key)
                self.finish(key)

    def finish(self, key: int) -> None:
        progress = self.unfinished.pop(key)
        self.scheduler.finish(key, tokens=progress.context)
        self.last_end = self.now
        self.open[progress.step] -= 1
        self.start_update()
        self.assign()

    def end_tool(self, key: int) -> None:
        progress = self.unfinished[key]
        progress.in_tool = False
        if progress.engine is not None:
            self.start_turn(key)

    def observe(self) -> None:
        for engine in self.engines.values():
            self.touch(engine)
            self.schedule_event(engine)
            engine.sample()
            for key in self.scheduler.observe(engine.name, engine.load):
                self.unfinished[key].engine = None
                self.abort(key, engine)
            for key, target in self.scheduler.relieve(engine.name):
                self.unfinished[key].engine = self.engines[target]
                if self.abort(key, engine):
                    self.start_turn(key)
        self.assign()
        self.push(self.now + self.observe_seconds, "observe", 0)

    def abort(self, key: int, engine: SimulatedEngine) -> bool:
        """Remove a trajectory from an engine, return whether it was in a turn, and keep the sampled tokens."""
        self.displaced += 1
        rest = engine.abort(key)
        self.schedule_event(engine)
        progress = self.unfinished[key]
        if rest is not None:
            progress.sampled = progress.trajectory.turns[progress.turn].tokens - rest
        return rest is not None

    def start_update(self) -> None:
        if not self.is_updating and self.trained < len(self.steps) and self.open[self.trained] == 0:
            self.is_updating = True
            self.push(self.now + self.update_seconds, "update", 0)

    def end_update(self) -> None:
        self.is_updating = False
        self.trained += 1
        self.ends.append(self.now)
        self.submit_steps()
        self.start_update()


def simulate(
    steps: Sequence[Sequence[SimulatedTrajectory]],
    hardware: Hardware,
    policy: SchedulingPolicy,
    *,
    engines: int,
    max_staleness: int = 0,
    update_seconds: float = 0.0,
    observe_seconds: float = OBSERVE_SECONDS,
) -> SimulationResult:
    """Run the trajectories of `steps` through `engines` engines; return the figures.

    `max_staleness`: updates that may be missing in the weights that sample a step. `update_seconds`: time of an update;
    `observe_seconds`: interval between two reports of live figures. Raises ValueError if a trajectory needs more tokens
    than an engine's KV cache has.
    """
    needed = max(trajectory.prompt_tokens + trajectory.budget for step in steps for trajectory in step)
    if needed > hardware.kv_tokens:
        raise ValueError(f"a trajectory needs {needed} tokens, an engine's KV cache has {hardware.kv_tokens}")
    simulation = _Simulation(
        steps,
        hardware,
        policy,
        engines=engines,
        max_staleness=max_staleness,
        update_seconds=update_seconds,
        observe_seconds=observe_seconds,
    )
    simulation.run()
    makespan, last_end = simulation.ends[-1], simulation.last_end
    every = list(simulation.engines.values())
    return SimulationResult(
        makespan=makespan,
        step_seconds=[end - start for start, end in itertools.pairwise([0.0, *simulation.ends])],
        bound=sum(lower_bound(step, hardware, engines=engines) for step in steps),
        turns=sum(len(trajectory.turns) for step in steps for trajectory in step),
        preemptions=sum(engine.preemptions for engine in every),
        recomputed_tokens=sum(engine.recomputed_tokens for engine in every),
        displaced=simulation.displaced,
        idle_share=1 - sum(engine.busy_seconds for engine in every) / (len(every) * last_end),
        tail_seconds=last_end - max(simulation.starts),
        samples={engine.name: engine.samples for engine in every},
    )
