"""Rollouts: the agent loop of one trajectory, many of them at a time, and their records.

    orchestrator.rollout_session, launch.evaluation
      |
      v
    collector ----------> scoring            penalties, verdict, reward (rewards, grpo_roc.penalties)
      |  one per trajectory
      v
    agent   turn -> tool calls -> turn -> ... -> answer or limit
      |  each turn              |  each call
      v                         v
    generation                  judge client, jupyter_tool (one judge session per trajectory), or remote_tools (MCP)
      |  failover
      v
    inference.pool --> engines

Modules:

- `collector`         runs rollouts concurrently and returns them scored
- `context`           the shared inputs of a set of rollouts
- `workers`           further processes that run rollouts
- `agent`             the agent loop of one trajectory
- `generation`        generates one turn, with failover to another engine
- `remote_tools`      the tools of MCP servers and of an environment
- `agent_program`     rollouts of a user's own program, through an OpenAI-compatible endpoint
- `environment_episode` the episode of an environment, one per trajectory
- `jupyter_tool`      the tool `jupyter_code` on a judge session
- `chat_template`     conversations as text, by the model's chat template
- `template_file`     the chat template of a model folder
- `chat_format`       conversations as tokens: prompts, turns, tool responses
- `default_prompts`   the system prompt and the prefix of a job that sets none
- `template_check`    renders the demonstrations of a job before it starts
- `scoring`           penalties, verdict and reward of a finished trajectory
- `trajectory`        the record of one rollout
- `trajectory_store`  trajectories as Parquet files
- `row_data`          the further data of a row, parsed
- `seeds`             random seeds derived from names
"""
