"""Names of the linear layers of LoRA. Without pydantic: the ranks read them too."""

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
LAYER = (*ATTENTION, *MLP)
"""Names of the linear layers that a layer of the model must have, each once."""
