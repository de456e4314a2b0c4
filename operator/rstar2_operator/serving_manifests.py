"""`python -m rstar2_operator.serving_manifests JOB.yaml`: the objects that serve the model of a job, for kubectl.

Not a part of the running operator, whose builders it uses (builders/serving.py). `make crds` writes
examples/serve.yaml with it, and a test fails when that is out of date.
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

DESCRIPTION = "Print the objects that serve a model which a job has trained: engine, judge, Redis, endpoint."
EPILOG = f"""The head of what it prints says how to apply it. What the manifest leaves to the site comes from the
operator's own variables: {PREFIX}ROLLOUT_IMAGE (engine and endpoint), {PREFIX}JUDGE_IMAGE, {PREFIX}REDIS_IMAGE,
{PREFIX}IMAGE_PULL_POLICY, {PREFIX}GPU_GROUPS. All else is the manifest's: tensorParallel, engineArgs and resources
of the engine, limits of the judge, runtimePatches (those of the engines are the endpoint's too), and its namespace.

examples:
  python -m rstar2_operator.serving_manifests --out serve.yaml examples/qwen3-14b.yaml
  python -m rstar2_operator.serving_manifests --stage rl-8k --executors 16 job.yaml | kubectl apply --server-side -f -
  python -m rstar2_operator.serving_manifests --secret job.yaml | kubectl create -f -"""
HEAD = """\
Serves the model of the job {job} (its stage {stage}): an engine, a judge with gVisor sandboxes, Redis, and an
OpenAI-compatible endpoint that runs the tool loop on the server. docs/serving.md says what the endpoint does.
For another job, stage or image write such a file from that job's manifest (--help) rather than editing this one. Images
that are not named are not published: images/README.md builds them.

  export {PREFIX}ROLLOUT_IMAGE=REGISTRY/rollout:TAG {PREFIX}JUDGE_IMAGE=REGISTRY/judge:TAG
  python -m rstar2_operator.serving_manifests --out {out} {file}

The claim {claim}, where the job has left its model, is mounted read-only: apply this in the job's namespace.
Tokens and keys are made once, by the command with --secret; the Secret in this file is empty and overwrites nothing.

  python -m rstar2_operator.serving_manifests --secret {file} | {kubectl} create -f -
  {kubectl} apply --server-side -f {out}
  {kubectl} wait --for=condition=Available --timeout=30m deployment/{name}-endpoint
  {kubectl} port-forward service/{name}-endpoint {port} &
  export RSTAR2_SERVE_TOKEN=$({kubectl} get secret {name}-secrets -o jsonpath='{{.data.serve-token}}' | base64 -d)
  rstar2 chat --url http://127.0.0.1:{port}

`{kubectl} delete -f {out}` removes all of it, the tokens too; the job's claim stays.
NetworkPolicies let nobody in the cluster reach the endpoint: to open it, add to `ingress` of {name}-endpoint."""


def main(argv: list[str] | None = None) -> int:
    """Print; returns the exit code."""
    given = _parser().parse_args(argv)
    try:
        job = load(read_manifest(given.file))
        stage = given.stage or last_trained(job)
        wanted = ServingRequest(job, stage, OperatorSettings.from_env(os.environ), given.executors)
        if given.secret:
            text = dump_yaml([serving_secret(wanted)])
        else:
            text = render(wanted, file=given.file, out=given.out or Path("serve.yaml"))
        if given.out is None:
            print(text, end="")
        else:
            given.out.write_text(text, encoding="utf-8")
    except (ManifestError, InvalidJob, ValueError, OSError) as error:
        print(f"rstar2_operator.serving_manifests: {given.file}: {error}", file=sys.stderr)
        return 1
    return 0


def render(wanted: ServingRequest, *, file: Path, out: Path) -> str:
    """The whole text: a head that says how to use it, then the objects.

    `file`: the job's manifest; `out`: the file that the text is for. Raises as `serving` does.
    """
    bodies = serving(wanted)
    job = wanted.job
    head = HEAD.format(
        PREFIX=PREFIX,
        job=job.metadata.name,
        stage=wanted.stage,
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
    parser.add_argument("--stage", help="stage whose model is served (default: the last that trains)")
    parser.add_argument(
        "--executors", type=count, default=EXECUTORS, metavar="N", help="sandboxes (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: standard output)")
    parser.add_argument("--secret", action="store_true", help="print the Secret alone, with fresh tokens and keys")
    return parser


if __name__ == "__main__":
    sys.exit(main())
