"""Chat templates of model families in short form: they render the tests' conversations as the published ones do."""

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Writes role and content, and no other field."""
_REASONING = """\
{%- set query = namespace(at=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set query.at = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role != 'assistant' %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- else %}
{%- set reasoning, content = m.reasoning_content or '', m.content or '' %}
{%- if not reasoning and '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].split('<think>')[-1] %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > query.at and (ALWAYS or reasoning or loop.last) %}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- content.lstrip('\\n') }}
{%- for call in m.tool_calls or [] %}
{{- '\\n' if content or not loop.first }}
{%- set arguments = call.function.arguments | tojson %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + arguments + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\nSTART' }}{% endif %}"""
QWEN3 = _REASONING.replace("ALWAYS", "false").replace("START", "")
"""Writes reasoning_content and tool_calls."""
QWEN35 = _REASONING.replace("ALWAYS", "true").replace("START", "<think>\\n")
"""Opens the reasoning of a turn itself."""
QWEN35_SILENT = _REASONING.replace("ALWAYS", "true").replace("START", "<think>\\n\\n</think>\\n\\n")
"""Opens and closes it: the model does not reason."""
DEEPSEEK_R1 = """\
{{- bos_token or '' }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{{ '<|user|>' + m.content }}
{%- else %}{{ '<|assistant|>' + m.content.split('</think>')[-1] + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|><think>\\n' }}{% endif %}"""
"""Opens the reasoning of a turn, and drops that of earlier turns; it writes neither calls nor reasoning_content."""
LLAMA32 = """\
{{- bos_token or '' }}
{%- if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}
{%- else %}{% set system, rest = '', messages %}{% endif %}
{%- if strftime_now is defined %}{% set today = strftime_now('%d %b %Y') %}
{%- else %}{% set today = '26 Jul 2024' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n' }}
{{- 'Today Date: ' + today + '\\n\\n' + system + '<|eot_id|>' }}
{%- for m in rest %}
{%- if m.tool_calls %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- set call = m.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}<|eot_id|>' }}
{%- else %}{% set role = 'ipython' if m.role == 'tool' else m.role %}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
"""Contains the current date, and writes one call as JSON without tags."""
GEMMA2 = """\
{{- bos_token or '' }}
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""
"""Has no system role."""
GLM4 = """\
[gMASK]<sop>
{%- for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
"""Ends a turn with the start of the next one, and writes a line break before each content, which the start lacks."""
MISTRAL = """\
{{- bos_token or '' }}
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ ' ' + m.content + '<|im_end|>' }}
{%- else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}
{%- endfor %}"""
"""Ignores add_generation_prompt: a turn starts with a space."""
VICUNA = """\
{%- for m in messages %}
{%- if m.role == 'assistant' %}{{ 'ASSISTANT: ' + m.content + '<|im_end|>' }}
{%- else %}{{ 'USER: ' + m.content + ' ' }}{% endif %}
{%- endfor %}"""
"""Ignores add_generation_prompt, and has a space before a content."""
NO_START = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
"""Ignores add_generation_prompt."""
SPECIAL_TOKENS = (
    "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|eom_id|>", "<start_of_turn>", "<end_of_turn>", "<think>", "</think>",
)  # fmt: skip
