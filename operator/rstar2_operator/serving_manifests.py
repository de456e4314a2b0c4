"""`python -m rstar2_operator.serving_manifests JOB.yaml`: the objects that serve the model of a job, for kubectl.

It uses the operator's builders (builders/serving.py), but is not part of the running operator. `make crds` writes
examples/serve.yaml with it, and a test fails if that file is stale.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from rstar2_operator import names
from rstar2_operator.builders.serving import EXECUTORS, ServingRequest, last_trained, serving, serving_secret
from rstar2_operator.settings import PREFIX, OperatorSettings
from rstar2_train.api.issue import InvalidJob
from rstar2_train.api.loader import ManifestError, dump_yaml, read_manifest
from rstar2_train.api.validation import load
from rstar2_train.utils.options import count

DESCRIPTION = "Print the objects that serve the model of a job: engine, judge, executors, Redis, endpoint."
EPILOG = f"""The header of the output describes how to apply it. Settings of the site come from the operator's
variables: {PREFIX}ROLLOUT_IMAGE (engine and endpoint), {PREFIX}JUDGE_IMAGE, {PREFIX}REDIS_IMAGE,
{PREFIX}IMAGE_PULL_POLICY, {PREFIX}GPU_GROUPS. All other settings come from the manifest: tensorParallel, engineArgs
and resources of the engine, limits of the judge, runtimePatches (the endpoint gets those of the engines), namespace.

examples:
  python -m rstar2_operator.serving_manifests --out serve.yaml examples/qwen3-14b.yaml
  python -m rstar2_operator.serving_manifests --stage rl-8k --executors 16 job.yaml | kubectl apply --server-side -f -
  python -m rstar2_operator.serving_manifests --secret job.yaml | kubectl create -f -"""
HEAD = """\
Serves the model of job {job}, stage {stage}: an engine, a judge with gVisor sandboxes, Redis, and an
OpenAI-compatible endpoint that runs the tool loop on the server (docs/serving.md). For another job, stage or image,
generate a new file from that job's manifest (--help) instead of editing this one. The default images are not published:
build them as images/README.md describes.

  export {PREFIX}ROLLOUT_IMAGE=REGISTRY/rollout:TAG {PREFIX}JUDGE_IMAGE=REGISTRY/judge:TAG
  python -m rstar2_operator.serving_manifests --out {out} {file}

The engine parses calls of a client's own tools with spec.model.toolParser, by default hermes: set it for other models.
The claim {claim} has the job's model, and is mounted read-only: apply this file in the job's namespace.
The command with --secret creates tokens and keys once; the Secret in this file is empty and overwrites nothing.

  python -m rstar2_operator.serving_manifests --secret {file} | {kubectl} create -f -
  {kubectl} apply --server-side -f {out}
  {kubectl} wait --for=condition=Available --timeout=30m deployment/{name}-endpoint
  {kubectl} port-forward service/{name}-endpoint {port} &
  export RSTAR2_SERVE_TOKEN=$({kubectl} get secret {name}-secrets -o jsonpath='{{.data.serve-token}}' | base64 -d)
  rstar2 chat --url http://127.0.0.1:{port}

`{kubectl} delete -f {out}` deletes all these objects, including the tokens; the job's claim stays.
NetworkPolicies block access to the endpoint from the cluster: to allow it, add to `ingress` of {name}-endpoint."""


def main(argv: list[str] | None = None) -> int:
    """Print the manifests. Return the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        job = load(read_manifest(arguments.file))
        stage = arguments.stage or last_trained(job)
        request = ServingRequest(job, stage, OperatorSettings.from_env(os.environ), arguments.executors)
        if arguments.secret:
            text = dump_yaml([serving_secret(request)])
        else:
            text = render(request, file=arguments.file, out=arguments.out or Path("serve.yaml"))
        if arguments.out is None:
            print(text, end="")
        else:
            arguments.out.write_text(text, encoding="utf-8")
    except (ManifestError, InvalidJob, ValueError, OSError) as error:
        print(f"rstar2_operator.serving_manifests: {arguments.file}: {error}", file=sys.stderr)
        return 1
    return 0


def render(request: ServingRequest, *, file: Path, out: Path) -> str:
    """Return the output: a header with instructions, then the objects.

    `file`: the job's manifest; `out`: path of the output. Raises the errors of `serving`.
    """
    bodies = serving(request)
    job = request.job
    head = HEAD.format(
        PREFIX=PREFIX,
        job=job.metadata.name,
        stage=request.stage,
        file=file,
        out=out,
        kubectl=f"kubectl -n {job.metadata.namespace}" if job.metadata.namespace else "kubectl",
        claim=job.spec.storage.claim_name or names.claim(job.metadata.name),
        name=names.serving(job.metadata.name),
        port=names.ENDPOINT_PORT,
    )
    return "".join(f"# {line}".rstrip() + "\n" for line in head.splitlines()) + dump_yaml(bodies)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rstar2_operator.serving_manifests",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="the job's AgenticRLJob manifest (YAML)")
    parser.add_argument("--stage", help="stage whose model is served (default: the last training stage)")
    parser.add_argument(
        "--executors", type=count, default=EXECUTORS, metavar="N", help="sandboxes (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: standard output)")
    parser.add_argument("--secret", action="store_true", help="print only the Secret, with new tokens and keys")
    return parser


if __name__ == "__main__":
    sys.exit(main())
