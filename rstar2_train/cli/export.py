"""`rstar2 export`: write the adapter or the whole model of a job for other programs. See `serving/export.py`."""

from __future__ import annotations

import argparse

from rstar2_train.cli.common import Subparsers, add_base_option, add_command, add_state_option, fail
from rstar2_train.utils.options import user_path
from rstar2_train.utils.text import reason

NAME = "export"
DESCRIPTION = """Write the adapter of a model that was trained with LoRA, for peft and vLLM, or with --merge its whole
model in the format of Hugging Face: base plus adapter, added in float32 and rounded once."""
EPILOG = """MODEL is JOB (its last trained model), JOB/STAGE, a model folder, or an adapter in the form of peft. A
manifest with storage.url in place of JOB names the job in its bucket, whose newest state is downloaded.

examples:
  rstar2 export tiny-lora ./adapter                     adapter_config.json and adapter_model.safetensors
  rstar2 export tiny-lora ./adapter --base-name Qwen/Qwen3-8B        with the base's name on the Hub
  rstar2 export tiny-lora/rl ./model --merge            a whole model folder
  rstar2 export ./adapter ./model --merge --base ./Qwen3-8B

then:
  peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B"), "./adapter")
  vllm serve Qwen/Qwen3-8B --enable-lora --max-lora-rank 32 --lora-modules mine=./adapter"""


def add_arguments(commands: Subparsers) -> None:
    """Add the subcommand."""
    help = "write an adapter for peft and vLLM, or a whole model"
    parser = add_command(commands, NAME, main, help=help, description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("model", metavar="MODEL", help="JOB, JOB/STAGE, MANIFEST, model folder, or adapter")
    parser.add_argument("folder", type=user_path, metavar="FOLDER", help="folder to create")
    parser.add_argument("--merge", action="store_true", help="write the whole model")
    add_base_option(parser)
    parser.add_argument(
        "--base-name", metavar="NAME", help="name of the base in adapter_config.json (default: its folder)"
    )
    add_state_option(parser)


def main(args: argparse.Namespace) -> int:
    """Write the folder; return the exit code."""
    from rstar2_train.launch.local.preflight import PreflightError
    from rstar2_train.serving.export import export_adapter, export_model

    if args.merge and args.base_name:
        return fail(NAME, "--base-name has no effect with --merge. Remove one of them.")
    try:
        if args.merge:
            export_model(args.model, args.folder, jobs=args.state, base=args.base)
        else:
            export_adapter(args.model, args.folder, jobs=args.state, base=args.base, base_name=args.base_name)
    except PreflightError as error:
        return fail(NAME, str(error))
    except OSError as error:
        return fail(NAME, f"{error.filename or args.folder}: {reason(error)}")
    print(f"{'model' if args.merge else 'adapter'}  {args.folder}")
    return 0
