"""`kubectl rstar2 verify`: `rstar2 verify` on the stored rollouts of a job, in a pod that mounts its claim."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rstar2_train.cli.kubectl import Kubectl, KubectlFailed
from rstar2_train.cli.state_pod import ENDED, add_timeout_option, pod_states, problem, state_pod
from rstar2_train.cli.verify import add_rollout_options

HELP = "repeat and explain the verdicts on the stored rollouts of a problem"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_rollout_options(parser, required=True)
    add_timeout_option(parser)


def verify(kubectl: Kubectl, options: argparse.Namespace) -> int:
    """Print the verdicts; return the exit code of `rstar2 verify`. Raises KubectlFailed."""
    arguments = ["verify", f"--job={options.job}", f"--problem={options.problem}"]
    arguments += [] if options.sample is None else [f"--sample={options.sample}"]
    with state_pod(kubectl, options.job, arguments) as name:
        states = pod_states(kubectl, name, seconds=options.timeout)
        next(states)
        kubectl.in_terminal("logs", name, "--follow")
        return _exit_code(next(pod for pod in states if pod["status"]["phase"] in ENDED))


def _exit_code(pod: Mapping[str, Any]) -> int:
    """Return the exit code of the container of a pod that has ended. Raises KubectlFailed if it has none."""
    for container in pod["status"].get("containerStatuses") or ():
        if terminated := container["state"].get("terminated"):
            return int(terminated["exitCode"])
    raise KubectlFailed(f"pod {pod['metadata']['name']} ended without an exit code: {problem(pod)}")
