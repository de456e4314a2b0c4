"""The part `simulated` of bench/rollout.py: the policies on the paper's step, 16,384 trajectories on 20 engines.

Each simulation has two steps of different prompts; the figures are of the second one, for which Graded has learned the
lengths of the first. Static is measured with several limits, and the best one counts. Preempted tokens are computed
again in the simulation.
"""

from __future__ import annotations

import sys
from statistics import mean
from typing import Any

from rstar2_train.inference.policies import PolicyName, make_policy
from rstar2_train.simulation.bound import lower_bound
from rstar2_train.simulation.hardware import load_hardware
from rstar2_train.simulation.run import simulate
from rstar2_train.simulation.workload import LengthStatistics, draw_step

HARDWARE = "qwen3-14b-mi300x-tp2"
BUDGETS = {8192: 4000.0, 12288: 7000.0}
"""Response budget of the paper -> mean sampled tokens (an assumption: the paper has no figure for training)."""
STATIC_LIMITS = (192, 224, 256, 320, 400)
NO_LIMIT = 1024


def measure(*, quick: bool) -> dict[str, Any]:
    """Return `simulated`: per policy the larger ratio of both budgets, the preemptions, and the mean idle share."""
    scale = 4 if quick else 1
    seeds = (0,)
    policies: dict[str, dict[str, Any]] = {}
    for policy in ("Static", "Reserve", "Graded"):
        budgets = {str(budget): _best(policy, budget, scale=scale, seeds=seeds) for budget in BUDGETS}
        policies[policy] = {
            "makespan_over_bound": max(figures["makespan_over_bound"] for figures in budgets.values()),
            "preemptions": sum(figures["preemptions"] for figures in budgets.values()),
            "idle_share": mean(figures["idle_share"] for figures in budgets.values()),
            "budgets": budgets,
        }
    return {"simulated": policies}


def _best(policy: PolicyName, budget: int, *, scale: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    """Return the figures of a policy with its best limit, the mean over the seeds."""
    limits = STATIC_LIMITS if policy == "Static" else (NO_LIMIT,)
    figures = [_run(policy, limit, budget, scale=scale, seeds=seeds) for limit in limits]
    return min(figures, key=lambda figure: float(figure["makespan_over_bound"]))


def _run(policy: PolicyName, limit: int, budget: int, *, scale: int, seeds: tuple[int, ...]) -> dict[str, Any]:
    hardware, engines = load_hardware(HARDWARE), 20 // scale
    ratios, preemptions, shares, idle, seconds, displaced = [], 0, [], [], [], 0
    for seed in seeds:
        statistics = LengthStatistics(budget, BUDGETS[budget])
        steps = [draw_step(statistics, prompts=512 // scale, samples=32, seed=seed, first=at * 512) for at in range(2)]
        result = simulate(steps, hardware, make_policy(policy, max_in_flight=limit), engines=engines)
        ratios.append(result.step_seconds[1] / lower_bound(steps[1], hardware, engines=engines))
        seconds.append(result.step_seconds[1])
        preemptions += result.preemptions
        displaced += result.displaced
        shares.append(result.preempted_share)
        idle.append(result.idle_share)
        print(f"{policy} {limit} {budget} seed {seed}: {ratios[-1]:.3f} x bound", file=sys.stderr, flush=True)
    return {
        "max_in_flight": limit,
        "makespan_over_bound": round(mean(ratios), 4),
        "step_s": round(mean(seconds), 1),
        "preemptions": preemptions,
        "preempted_share": round(mean(shares), 6),
        "displaced": displaced,
        "idle_share": round(mean(idle), 4),
    }
