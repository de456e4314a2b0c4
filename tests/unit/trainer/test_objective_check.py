"""Objectives in files of a user: checked on a drawn update before the job starts; each fault names its line."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from rstar2_train.api.objectives import ObjectiveSpec
from rstar2_train.api.stages import ImportanceCorrection
from rstar2_train.api.validation import check
from rstar2_train.grpo_roc.custom_objective import ObjectiveFailed
from rstar2_train.trainer.objective_check import check_objective, find_objective_errors
from tests.support.drawn_updates import draw_update, parts_of, settings_of
from tests.support.good_manifest import changed

ADVANTAGES = """
def advantages(group, settings):
    mean = sum(group.rewards) / len(group.rewards)
    return [reward - mean for reward in group.rewards]
"""
GOOD = f"""\
from rstar2_train.grpo_roc.tokens import Terms
{ADVANTAGES}
def loss(tokens, settings):
    cap = settings.objective.parameters["cap"]
    ratio = tokens.sequence_mean(tokens.log_ratio).exp().clamp(max=cap)
    return Terms(ratio * tokens.advantages, tokens.weights("SequenceMean"), ratio_of="sequence")
"""
HEAD = f"from rstar2_train.grpo_roc.tokens import Terms\n{ADVANTAGES}\n"
LOSS = HEAD + "def loss(tokens, settings):\n    "
FAULTS = {
    "syntax": ("def loss(:\n", ":1: the import failed: SyntaxError"),
    "import": ("import nothing_here\n", ":1: the import failed: ModuleNotFoundError"),
    "no loss": (HEAD, "no function 'loss'"),
    "parameters": (HEAD + "def loss(tokens):\n    return None\n", ":7: loss must have two parameters"),
    "exception": (LOSS + "x = 1\n    return tokens.nothing\n", ":9: loss failed: AttributeError"),
    "no terms": (LOSS + "return tokens.ratio\n", ":7: loss must return rstar2_train.grpo_roc.tokens.Terms, not Tensor"),
    "end of the process": (LOSS + "raise SystemExit(0)\n", ":8: loss failed: SystemExit"),
    "unknown ratio": (
        LOSS + "return Terms(tokens.ratio, tokens.weights('TokenMean'), ratio_of='Sequence')\n",
        ":7: Terms.ratio_of must be token or sequence, not 'Sequence'",
    ),
    "shape": (
        LOSS + "return Terms(tokens.ratio.sum(), tokens.weights('TokenMean'))\n",
        ":7: Terms.objective must be a tensor of the shape (43,), not ()",
    ),
    "not finite": (
        LOSS + "return Terms(tokens.ratio / (tokens.ratio - tokens.ratio), tokens.weights('TokenMean'))\n",
        "objective and weights must be finite",
    ),
    "no gradient": (
        LOSS + "return Terms(tokens.ratio.detach() * tokens.advantages, tokens.weights('TokenMean'))\n",
        ":7: loss has no gradient",
    ),
    "root of 0": (
        LOSS + "far = (tokens.log_ratio**2).sqrt()\n"
        "    return Terms(tokens.ratio * tokens.advantages - 0.1 * far, tokens.weights('TokenMean'))\n",
        ":7: the gradient of loss is not finite for ratios of 1",
    ),
    "reward equal to the mean": (
        LOSS + "sign = tokens.advantages / tokens.advantages.abs()\n"
        "    return Terms(tokens.ratio * sign, tokens.weights('TokenMean'))\n",
        ":7: the loss is nan",
    ),
    "trains padding": (
        LOSS + "return Terms(tokens.logprobs, 0 * tokens.ratio.detach() + 1 / tokens.counts.tokens)\n",
        ":7: Terms.weights must be 0 where tokens.trained is False",
    ),
    "no trained token": (
        LOSS + "most = tokens.advantages[tokens.trained].max()\n"
        "    return Terms(tokens.ratio * tokens.advantages + 0 * most, tokens.weights('TokenMean'))\n",
        ":8: loss failed: RuntimeError: max()",
    ),
    "weights with a gradient": (
        LOSS + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean') * tokens.ratio)\n",
        ":7: Terms.weights must have no gradient",
    ),
    "computes gradients": (
        LOSS + "(tokens.ratio * tokens.advantages).sum().backward(retain_graph=True)\n"
        "    return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean'))\n",
        ":7: loss must not compute gradients itself",
    ),
    "drawn metric": (
        LOSS + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean'), "
        "tokens.ratio.detach().bernoulli(0.5))\n",
        ":7: Terms.clipped must be finite, and the same",
    ),
    "state": (
        GOOD.replace("    mean = sum", "    MEANS.append(sum(group.rewards)); mean = sum(MEANS) + 0 * sum").replace(
            "def adv", "MEANS = []\ndef adv"
        ),
        ":4: advantages must return the same values",
    ),
    "changes the group": (
        GOOD.replace("    mean = sum", "    group.rewards[0] = 0.5; mean = sum"),
        ":3: advantages must not change the group",
    ),
    "random": (
        "import random\n" + LOSS + "return Terms(tokens.ratio * random.random(), tokens.weights('TokenMean'))\n",
        ":8: loss must have the same gradient for the same input",
    ),
    "mean of the micro-batch": (
        LOSS + "return Terms(tokens.ratio * tokens.advantages, tokens.trained / tokens.trained.sum())\n",
        ":7: loss depends on the packing",
    ),
    "ratios of the micro-batch": (
        LOSS
        + "return Terms(tokens.ratio * (tokens.advantages - tokens.advantages.mean()), tokens.weights('TokenMean'))\n",
        ":7: loss depends on the packing",
    ),
    "changes its input": (
        LOSS + "tokens.advantages.mul_(2)\n    return Terms(tokens.ratio, tokens.weights('TokenMean'))\n",
        ":7: loss must not change tokens.advantages in place",
    ),
    **{
        f"changes {name}": (
            LOSS + f"tokens.{name}.{change}\n    return Terms(tokens.ratio, tokens.weights('TokenMean'))\n",
            f":7: loss must not change tokens.{name} in place",
        )
        for name, change in {
            "ratio": "detach().clamp_(max=1.05)",
            "counts.group_tokens": "mul_(2)",
            "sequence_tokens": "add_(1)",
            "groups": "fill_(0)",
        }.items()
    },
    "number of a group": (
        LOSS + "first = 1.0 + (tokens.groups == 0)\n"
        "    return Terms(tokens.ratio * tokens.advantages * first, tokens.weights('TokenMean'))\n",
        ":7: loss depends on the packing",
    ),
    "empty response": (
        GOOD.replace("[reward - mean for reward in group.rewards]", "[1 / length for length in group.lengths]"),
        ":5: advantages failed: ZeroDivisionError",
    ),
    "changes the settings": (
        GOOD.replace('= settings.objective.parameters["cap"]', '= settings.objective.parameters.setdefault("c", 2)'),
        ": the functions must not change the settings",
    ),
    "too few advantages": (
        GOOD.replace("for reward in group.rewards]", "for reward in group.rewards[1:]]"),
        ":3: advantages must return a list of 4 numbers",
    ),
    "infinite advantage": (
        GOOD.replace("reward - mean for", "float('inf') for"),
        ":3: advantages must return finite Python floats",
    ),
    "no tensor of torch": (
        LOSS + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean').numpy())\n",
        ":7: Terms.weights must be a tensor of torch, not ndarray",
    ),
    "other device": (
        LOSS + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean').to('meta'))\n",
        ":7: Terms.weights must be a tensor on the device of tokens.logprobs, cpu, not meta",
    ),
    "own attribute": (
        LOSS + "vars(tokens)['before'] = tokens.ratio\n"
        "    return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean'))\n",
        ":7: loss must not change tokens.before in place",
    ),
    "sparse": (
        LOSS + "return Terms((tokens.ratio * tokens.advantages).to_sparse(), tokens.weights('TokenMean'))\n",
        ":7: Terms.objective must be a tensor of the layout torch.strided, not torch.sparse_coo",
    ),
    "negative weights": (
        LOSS + "return Terms(-tokens.ratio * tokens.advantages, -tokens.weights('TokenMean'))\n",
        ":7: Terms.weights must not be negative",
    ),
    "place in the group": (
        GOOD.replace(
            "[reward - mean for reward in group.rewards]", "[n * reward for n, reward in enumerate(group.rewards)]"
        ),
        ":3: advantages must not depend on the order of the rollouts",
    ),
    "denominators": (
        LOSS + "object.__setattr__(tokens.counts, 'tokens', 1)\n"
        "    return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean'))\n",
        ":7: loss must not change tokens.counts.tokens in place",
    ),
    "narrow weights": (
        LOSS + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean').half())\n",
        ":7: Terms.weights must be a tensor of torch.float32, not torch.float16",
    ),
    "narrow objective": (
        LOSS + "return Terms((tokens.ratio * tokens.advantages).bfloat16(), tokens.weights('TokenMean'))\n",
        ":7: Terms.objective must be a tensor of torch.float32, not torch.bfloat16",
    ),
    "first ratios": (
        "SEEN = []\n" + LOSS + "SEEN.append(tokens.ratio.detach().mean())\n"
        "    return Terms(tokens.ratio * tokens.advantages / SEEN[0], tokens.weights('TokenMean'))\n",
        ": a result depends on earlier calls",
    ),
    "first rewards": (
        "SEEN = []\n" + GOOD.replace("    mean = sum", "    SEEN.append(sum(group.rewards)); mean = SEEN[0] + 0 * sum"),
        ": a result depends on earlier calls",
    ),
    "default dtype": (
        "import torch\ntorch.set_default_dtype(torch.float64)\n"
        + LOSS
        + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean'))\n",
        ": the file must not change the modes of torch",
    ),
    **{
        f"mode {setting}": (
            f"import torch\ntorch.{setting}\n"
            + LOSS
            + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean'))\n",
            ": the file must not change the modes of torch",
        )
        for setting in (
            "set_float32_matmul_precision('medium')",
            "autograd.set_detect_anomaly(True)",
            "backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False",
        )
    },
    "no share": (
        LOSS + "return Terms(tokens.ratio * tokens.advantages, tokens.weights('TokenMean'), 7 * tokens.trained)\n",
        ":7: Terms.clipped must be True or False",
    ),
    "generator": (
        GOOD.replace("return [reward", "yield [reward"),
        ":3: advantages must return a list of 4 numbers, one per rollout, not generator",
    ),
    "decorator of torch": (
        "import torch\n" + LOSS.replace("def loss", "@torch.no_grad()\ndef loss") + "return 1\n",
        ":8: loss must return rstar2_train.grpo_roc.tokens.Terms, not int",
    ),
    "object": (
        HEAD + "class Loss:\n    def __call__(self, tokens, settings):\n        return 1\n\nloss = Loss()\n",
        ":8: loss must return rstar2_train.grpo_roc.tokens.Terms, not int",
    ),
    "class": (
        HEAD + "class loss:\n    def __init__(self, tokens, settings):\n        pass\n",
        ":8: loss must return rstar2_train.grpo_roc.tokens.Terms, not loss",
    ),
    "partial": (
        "import functools\n" + HEAD + "def f(cap, tokens, settings):\n    return 1\n\nloss = functools.partial(f, 2)\n",
        ":8: loss must return rstar2_train.grpo_roc.tokens.Terms, not int",
    ),
    "unknown parameter": (
        GOOD.replace("parameters[", "parameters[1, "),
        ":8: loss failed: KeyError",
    ),
}


def write(folder: Path, text: str) -> ObjectiveSpec:
    file = folder / "objective.py"
    file.write_text(text)
    return ObjectiveSpec(type="Custom", source=str(file), parameters={"cap": 1.5})


def test_check_objective_accepts_a_sequence_level_file(tmp_path: Path) -> None:
    """A file with both functions passes, and its loss is that of its equation for any distribution."""
    spec = write(tmp_path, GOOD)
    settings = settings_of("Custom", source=spec.source, parameters=spec.parameters)
    check_objective(settings)
    update = draw_update(0, settings)
    _, gradient = parts_of(update)
    expected = []
    for rollout in update.rollouts:
        mean = (rollout.new.double() - rollout.old.double()).mean().exp()
        slope = -mean * rollout.advantage / len(rollout.new) / len(update.rollouts)
        expected.append((slope * (mean < 1.5)).expand(len(rollout.new)))
    torch.testing.assert_close(gradient.double(), torch.cat(expected), rtol=1e-6, atol=1e-12)
    _, distributed = parts_of(update, ranks=4, budget=64, packed=False, order=1)
    torch.testing.assert_close(distributed, gradient, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", FAULTS)
def test_check_objective_fault_names_the_line(tmp_path: Path, name: str) -> None:
    """Each fault of a file is an error with the line and the reason."""
    text, message = FAULTS[name]
    spec = write(tmp_path, text)
    try:
        with pytest.raises(ObjectiveFailed) as caught:
            check_objective(settings_of("Custom", source=spec.source, parameters=spec.parameters))
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
        torch.autograd.set_detect_anomaly(False)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    assert str(caught.value).startswith(str(tmp_path))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        (
            "import statistics\n"
            + GOOD.replace("reward - mean for", "(reward - mean) / statistics.stdev(group.rewards) for"),
            {"overlong_buffer_ratio": 0.2},
            ":6: advantages failed: ZeroDivisionError",
        ),
        (
            LOSS + "weights = (1 / tokens.sequence_tokens[tokens.sequences]).where(tokens.trained, 0.0)\n"
            "    return Terms(tokens.ratio * tokens.advantages, weights / tokens.counts.sequences)\n",
            {"correction": ImportanceCorrection(max_sequence_gap=1.0, sequence_gap_action="Drop")},
            ":7: the loss is nan if maxSequenceGap drops rollouts",
        ),
    ],
    ids=["equal after the shaping", "dropped rollouts"],
)
def test_check_objective_uses_the_settings_of_the_stage(
    tmp_path: Path, text: str, fields: dict[str, Any], message: str
) -> None:
    """A file that fails only in a stage that shapes rewards or drops rollouts is refused there, and only there."""
    spec = write(tmp_path, text)
    check_objective(settings_of("Custom", source=spec.source, parameters=spec.parameters))
    with pytest.raises(ObjectiveFailed, match=message):
        check_objective(settings_of("Custom", source=spec.source, parameters=spec.parameters, **fields))


def test_find_objective_errors_runs_the_file_in_a_child(tmp_path: Path) -> None:
    """The fault of a stage's file has the field of the stage; a file that ends the process is a fault too."""
    job, issues = check(changed("spec.stages.1.grpo.objective", {"type": "Custom", "source": str(tmp_path / "o.py")}))
    assert job is not None
    warnings = [str(issue) for issue in issues if issue.warning and "objective" in issue.field]
    assert any("without the sandbox of tools" in warning for warning in warnings)
    (tmp_path / "o.py").write_text("import os\nprint('the objective can be used')\nos._exit(0)\n")
    ((field, error),) = find_objective_errors(job).items()
    assert field == "spec.stages[1].grpo.objective.source" and "exit code 0" in error


def test_objective_failure_crosses_processes() -> None:
    """The error of a rank reaches the orchestrator as it is: a fault of the configuration, not retryable."""
    error = pickle.loads(pickle.dumps(ObjectiveFailed("o.py:3: loss failed")))
    assert (str(error), error.reason, error.retryable) == ("o.py:3: loss failed", "BadConfiguration", False)


def test_check_objective_accepts_the_example_of_the_docs(tmp_path: Path) -> None:
    """The file of docs/objectives.md is valid, with the parameters of its manifest."""
    page = (Path(__file__).parents[3] / "docs" / "objectives.md").read_text(encoding="utf-8")
    spec = write(tmp_path, page.partition("```python\n")[2].partition("```")[0])
    check_objective(settings_of("Custom", source=spec.source, parameters={"baseline": 0.5, "cap": 2.0}))
