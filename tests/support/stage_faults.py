"""Faults of the name, the model, the stages and their settings, as a part of manifests.py."""

from __future__ import annotations

from tests.support.good_manifest import GOOD, Fault, evaluate

STAGE_FAULTS: list[Fault] = [
    (
        "spec.stages.1.trainer",
        {"lora": {"start": "Continue"}},
        "spec.stages[1].trainer.lora.start is 'Continue': must be New: stage sft before it trains the whole model",
        None,
    ),
    ("spec.stages.2.trainer", {"lora": {}}, "spec.stages[2].trainer.lora: is only allowed", "is only allowed if type"),
    (
        "spec.model.source",
        "ftp://bucket/model",
        "spec.model.source is 'ftp://bucket/model': allowed: pvc://CLAIM",
        None,
    ),
    (
        "spec.stages.0.sft.data",
        "pvc://",
        "spec.stages[0].sft.data is 'pvc://': must name a PersistentVolumeClaim",
        None,
    ),
    (
        "spec.stages.1.grpo.keepPerPrompt",
        64,
        "spec.stages[1].grpo.keepPerPrompt is 64: must be at most rolloutsPerPrompt, which is 32",
        "keepPerPrompt (default 16) must be at most rolloutsPerPrompt (default 32)",
    ),
    (
        "spec.grpo.keepPerPrompt",
        64,
        "spec.grpo.keepPerPrompt (for stage rl) is 64: must be at most rolloutsPerPrompt, which is 32",
        "keepPerPrompt (default 16) must be at most rolloutsPerPrompt (default 32)",
    ),
    (
        "spec.grpo.keepPerPromt",
        8,
        "spec.grpo.keepPerPromt: unknown field; did you mean 'keepPerPrompt'?",
        'unknown field "spec.grpo.keepPerPromt"',
    ),
    (
        "spec.trainer.lora",
        {"targetModules": "Mlp"},
        "spec.trainer.lora.targetModules is 'Mlp': must be a list: write [Mlp]",
        "spec.trainer.lora.targetModules in body must be of type array",
    ),
    (
        "spec.grpo.keep_per_prompt",
        4,
        "spec.grpo.keep_per_prompt: unknown field; did you mean 'keepPerPrompt'?",
        'unknown field "spec.grpo.keep_per_prompt"',
    ),
    (
        "spec.grpo.objective.clipLow",
        -1,
        "spec.grpo.objective.clipLow is -1: should be greater than 0",
        "spec.grpo.objective.clipLow in body should",
    ),
    (
        "spec.grpo.objective",
        {"type": "RLOO", "clipHigh": 0.28},
        "spec.grpo.objective.clipHigh is 0.28: is only allowed if type is GRPO, DrGRPO, DAPO, GSPO or CISPO: the loss "
        "of the other types clips no probability ratio; the type of this objective is RLOO",
        "is only allowed if type is GRPO, DrGRPO, DAPO, GSPO or CISPO",
    ),
    (
        "spec.stages.1.grpo.objective",
        {"type": "GSPO", "aggregation": "TokenMean"},
        "spec.stages[1].grpo.objective.aggregation is 'TokenMean': is only allowed if type is GRPO",
        "is only allowed if type is GRPO: the mean is a part of the definition of every other type",
    ),
    (
        "spec.stages.1.grpo.objective",
        {"type": "MaxRL", "overlongBufferRatio": 0.2},
        "spec.stages[1].grpo.objective.overlongBufferRatio is 0.2: must be 0 if type is MaxRL",
        "must be 0 if type is MaxRL",
    ),
    (
        "spec.grpo.referenceKl",
        {"weight": 0.1, "model": "Source"},
        "spec.grpo.referenceKl.source: source is required if model is Source, and only allowed then",
        "source is required if model is Source, and only allowed then",
    ),
    (
        "spec.stages.1.grpo.referenceKl",
        {"weight": 0.1, "source": "pvc://m/b"},
        "spec.stages[1].grpo.referenceKl.source is 'pvc://m/b': source is required if model is Source",
        "source is required if model is Source, and only allowed then",
    ),
    (
        "spec.grpo.objective",
        {"type": "Custom"},
        "spec.grpo.objective.source: source is required if type is Custom",
        "source is required if type is Custom, and only allowed then",
    ),
    (
        "spec.stages.1.grpo.objective",
        {"type": "Distillation"},
        "spec.stages[1].grpo.objective.teacher: teacher is required if type is Distillation",
        "teacher is required if type is Distillation, and only allowed then",
    ),
    *(
        ("spec.grpo.objective", {"type": "Distillation", "teacher": teacher}, message, rule)
        for teacher, message, rule in (
            ({}, "spec.grpo.objective.teacher: set either source or endpoint", "set either source or endpoint"),
            (
                {"source": "pvc://m/t", "endpoint": "http://t:80"},
                "spec.grpo.objective.teacher: set either source or endpoint",
                "set either source or endpoint",
            ),
            (
                {"source": "pvc://m/t", "model": "big"},
                "spec.grpo.objective.teacher.model is 'big': is only allowed with endpoint",
                "model is only allowed with endpoint",
            ),
            (
                {"endpoint": "teacher:8000"},
                "spec.grpo.objective.teacher.endpoint is 'teacher:8000': allowed: http:// or https://",
                "should match",
            ),
            ({"endpoint": "http://u:p@t/v1"}, "without user, path and query", "should match"),
        )
    ),
    *(
        (
            "spec.grpo.objective",
            objective,
            "overlongPenalty is 0.5: has no effect unless overlongBufferRatio is above 0",
            "has no effect unless overlongBufferRatio is above 0",
        )
        for objective in (
            {"type": "GRPO", "overlongPenalty": 0.5},
            {"type": "MaxRL", "overlongPenalty": 0.5},
            {"type": "DAPO", "overlongPenalty": 0.5, "overlongBufferRatio": 0},
        )
    ),
    *(
        (path, value, "at least 1 character", "should be at least 1 chars long")
        for path, value in (
            ("spec.grpo.objective", {"type": "Custom", "source": ""}),
            ("spec.grpo.objective", {"type": "Distillation", "teacher": {"source": ""}}),
            ("spec.grpo.objective", {"type": "Distillation", "teacher": {"endpoint": "http://t", "model": ""}}),
            ("spec.grpo.referenceKl", {"model": "Source", "source": ""}),
        )
    ),
    (
        "spec.stages.1.grpo",
        {
            "data": "/data/p.jsonl",
            "steps": 2,
            "temperature": 0.8,
            "objective": {"type": "Distillation", "teacher": {"endpoint": "http://t:80"}},
        },
        "spec.stages[1].grpo.temperature is 0.8: must be 1 with a teacher behind an endpoint",
        "temperature must be 1 with a teacher behind an endpoint",
    ),
    (
        "spec.grpo",
        {"temperature": 1.2, "objective": {"type": "Distillation", "teacher": {"endpoint": "http://t:80"}}},
        "spec.grpo.temperature (for stage rl) is 1.2: must be 1 with a teacher behind an endpoint",
        "temperature must be 1 with a teacher behind an endpoint",
    ),
    (
        "spec",
        {
            **GOOD["spec"],
            "teacher": {},
            "grpo": {"temperature": 0.5, "objective": {"type": "Distillation", "teacher": {"source": "pvc://m/t"}}},
        },
        "spec.grpo.temperature (for stage rl) is 0.5: must be 1 with a teacher behind an endpoint or with spec.teacher",
        "temperature must be 1 with a teacher behind an endpoint or with spec.teacher",
    ),
    (
        "spec",
        {
            **GOOD["spec"],
            "teacher": {"engineArgs": {"max_model_len": 10240}},
            "grpo": {"objective": {"type": "Distillation", "teacher": {"source": "pvc://m/t"}}},
        },
        "is 10240: must be at least maxPromptTokens + maxResponseTokens + 1: 10241 for stage rl",
        None,
    ),
    (
        "spec.stages",
        [
            {
                "name": "rl",
                "type": "GRPO",
                "grpo": {
                    "data": "/data/p.jsonl",
                    "steps": 2,
                    "objective": {"type": "Distillation", "teacher": {"source": "pvc://models/base"}},
                },
            }
        ],
        "objective.teacher.source is 'pvc://models/base': must not be spec.model.source if rewardWeight is 0",
        None,
    ),
    (
        "spec.grpo.objective",
        {"type": "CISPO", "teacher": {"source": "pvc://m/t"}},
        "spec.grpo.objective.teacher is ",
        "is only allowed if type is Distillation",
    ),
    (
        "spec.grpo.objective",
        {"type": "Distillation", "teacher": {"source": "pvc://m/t"}, "overlongBufferRatio": 0.2},
        "spec.grpo.objective.overlongBufferRatio is 0.2: must be 0 if type is Distillation and rewardWeight is 0",
        "must be 0 if type is Distillation and rewardWeight is 0",
    ),
    (
        "spec.stages.1.grpo",
        {
            "data": "/data/p.jsonl",
            "steps": 2,
            "objective": {"type": "Distillation", "teacher": {"source": "pvc://m/t"}},
            "referenceKl": {"weight": 0.1},
        },
        "spec.stages[1].grpo.referenceKl: must not be set if the objective's type is Distillation",
        "must not be set if the objective's type is Distillation",
    ),
    (
        "spec.grpo.referenceKl",
        {"weight": -0.1},
        "spec.grpo.referenceKl.weight is -0.1: should be greater than or equal to 0",
        "should be greater than or equal to 0",
    ),
    (
        "spec.grpo.objective",
        {"type": "SAPO", "parameters": {"tau": 1.0}},
        "spec.grpo.objective.parameters is {'tau': 1.0}: is only allowed if type is Custom",
        "is only allowed if type is Custom",
    ),
    (
        "spec.grpo.objective.type",
        "PPO",
        "spec.grpo.objective.type is 'PPO': allowed: 'GRPO', 'DrGRPO', 'DAPO'",
        'spec.grpo.objective.type: Unsupported value: "PPO"',
    ),
    (
        "spec.grpo.learningRate",
        "fast",
        "spec.grpo.learningRate is 'fast': should be a valid number",
        'spec.grpo.learningRate in body must be of type number: "string"',
    ),
    (
        "spec.stages.1.grpo.steps",
        True,
        "spec.stages[1].grpo.steps is True: should be a valid integer",
        'spec.stages[1].grpo.steps in body must be of type integer: "boolean"',
    ),
    (
        "spec.seed",
        "7",
        "spec.seed is '7': should be a valid integer",
        'spec.seed in body must be of type integer: "string"',
    ),
    (
        "spec.stages.1",
        {"name": "e", "type": "Evaluate", "evaluate": {"benchmarks": [{"name": "b", "data": "/p"}] * 2}},
        "spec.stages[1].evaluate.benchmarks[1].name is 'b': duplicate",
        'spec.stages[1].evaluate.benchmarks[1]: Duplicate value: {"name":"b"}',
    ),
    ("spec.stages.1.type", "PPO", "allowed: 'SFT', 'GRPO', 'Filter' or 'Evaluate'", 'Unsupported value: "PPO"'),
    (
        "spec.stages.1.name",
        "sft",
        "spec.stages[1].name is 'sft': duplicate; each name may occur only once in spec.stages",
        'spec.stages[1]: Duplicate value: {"name":"sft"}',
    ),
    (
        "spec.stages.1.sft",
        {"data": "x"},
        "spec.stages[1].sft: is only allowed if type is SFT; the type of this stage is GRPO",
        "stage rl is of type GRPO: sft is required if type is SFT, and only allowed then",
    ),
    (
        "spec.stages.1.grpo",
        None,
        "spec.stages[1].grpo: is required if type is GRPO",
        "stage rl is of type GRPO: grpo is required if type is GRPO, and only allowed then",
    ),
    (
        "spec.stages.1.grpo.steps",
        None,
        "spec.stages[1].grpo.steps: is required",
        "grpo.steps is required in a GRPO stage",
    ),
    (
        "spec.stages.1.grpo.data",
        None,
        "spec.stages[1].grpo.data: is required, unless dataFrom",
        "a GRPO stage needs data, or dataFrom",
    ),
    (
        "spec.stages.3.grpo.dataFrom",
        "rl",
        "must name an earlier Filter stage; this job has hard",
        "dataFrom of a GRPO stage must name an earlier Filter stage",
    ),
    (
        "spec.stages.1.grpo",
        {"dataFrom": "hard", "steps": 1},
        "must name an earlier Filter stage; this job has none",
        None,
    ),
    (
        "spec.stages.3.grpo.data",
        "/data/p.jsonl",
        "must not be set together with dataFrom",
        "spec.stages[3].grpo.data: Invalid value",
    ),
    ("spec.stages.2.filter.dropSolved", 9, "must be at most samples, which is 8", "must be at most samples"),
    (
        "spec.grpo.updatesPerStep",
        16,
        "at most promptsPerStep, which is 8",
        "updatesPerStep (default 1) must be at most promptsPerStep (default 512)",
    ),
    (
        "spec.grpo.resample",
        {"minPerClass": 9},
        "at most half of keepPerPrompt",
        "at most half of keepPerPrompt (default 16)",
    ),
    (
        "spec.grpo.importanceCorrection",
        {"sequenceGapAction": "Drop"},
        "spec.grpo.importanceCorrection.sequenceGapAction (for stage rl) is 'Drop': has no effect without",
        None,
    ),
    (
        "spec.stages.1.grpo.importanceCorrection",
        {"sequenceGapAction": "Drop"},
        "spec.stages[1].grpo.importanceCorrection.sequenceGapAction is 'Drop': has no effect without maxSequenceGap",
        None,
    ),
    ("spec.validation.data", " ", "must be a path or a URL, without NUL characters", None),
    ("spec.model.chatTemplate", "", "must be a path or a URL, without NUL characters", None),
    ("spec.validation.data", "s3://bucket/../x", "must be s3://BUCKET/KEY", None),
    ("metadata.name", "tiny.one", "lower-case letters, digits and '-'", "metadata.name in body should match"),
    (
        "spec.stages.0.name",
        "s" * 34,
        "job name and stage name together may have at most 50 characters",
        "job name and stage name together may have at most 50 characters",
    ),
    ("metadata.name", "n" * 41, "at most 40 characters", "may not be more than 40"),
    ("spec.stages.1.grpo.objective", {"type": "Custom", "source": "ftp://a"}, "allowed: pvc://CLAIM/PATH", None),
    ("spec.grpo.objective", {"type": "Distillation", "teacher": {"source": "hf://x"}}, "allowed: a model", None),
    (
        "spec.grpo.referenceKl",
        {"weight": 0.1, "model": "Source", "source": "pvc://"},
        "must name a PersistentVolumeClaim",
        None,
    ),
    ("spec.stages.0", evaluate("s3://bucket/../x"), "must be s3://BUCKET/KEY", None),
]
