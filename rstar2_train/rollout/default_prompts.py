"""The built-in prompts: the system prompt of a job that sets none, and the text before each problem. Pure."""

from __future__ import annotations

from rstar2_train.tools.toolset import Toolset

_SYSTEM_PROMPT = (
    "You solve problems for a user, and you can run Python while you work. Think first, inside <reason> and </reason>: "
    "plan, calculate with the tool, check what comes back, and change course when it shows a mistake. When you are "
    "sure, write the result once, inside <answer> and </answer>, with the final value in \\boxed{}."
)
_TOOLS_SYSTEM_PROMPT = _SYSTEM_PROMPT.replace("run Python", "call tools").replace("with the tool", "with them")
TOOLS_MARK = "{tools}"
"""Text in `spec.model.systemPrompt` that stands for the signatures of `spec.tools`."""
DEFAULT_PROMPT_PREFIX = (
    "Solve the problem below. Put the solution between <answer> and </answer>, with the final value in \\boxed{}: "
    "only what stands in that box is graded.\n\n"
)
"""Put before every problem when the job sets no prefix."""


def default_system_prompt(tools: Toolset) -> str:
    """Return the system message of a job that sets none; with one built-in tool it is that of the paper's Figure 2."""
    own = _SYSTEM_PROMPT if tools.in_paper_form else _TOOLS_SYSTEM_PROMPT
    return "\n\n".join(part for part in (own, tools.section()) if part)
