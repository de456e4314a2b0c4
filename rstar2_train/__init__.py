"""rStar2: agentic reinforcement learning with GRPO-RoC, on Kubernetes or on one machine."""

__version__ = "0.1.0"
