# Everything a person does in a clone. Each target sets the machine up first when that has not been done yet.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SETUP := scripts/setup.py
CHECKS := lint types imports docs unit integration chart e2e

.DEFAULT_GOAL := help
.PHONY: help setup demo test $(CHECKS) e2e-full format crds lock bench-judge bench-verify bench-learning bench-data clean

help: ## this table
	@echo "usage: make TARGET [PYTHON=/path/to/python3]"; echo
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## prepare this machine: .venv, locked packages, redis-server, g++, runsc; at once when it is done already
	@$(BIN)/python -I $(SETUP) --check 2>/dev/null || $(PYTHON) -I $(SETUP)

demo: setup ## train the tiny model through the whole curriculum (examples/tiny.yaml) and report what it learned
	@$(BIN)/rstar2 run examples/tiny.yaml

test: setup ## every check below, all of them even when one fails; then the time each took
	@$(BIN)/python tests/parts.py $(CHECKS) --beside e2e

lint: setup ## ruff: rules and format; hadolint: the Containerfiles
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/hadolint images/*/Containerfile

types: setup ## mypy: strict for the pure rooms, ordinary for the others
	@$(BIN)/mypy

imports: setup ## import-linter: which room may import which
	@$(BIN)/lint-imports

language: setup ## the words, the names and the docstrings that CONTRIBUTING.md asks for (tests/language)
	@$(BIN)/pytest tests/language

unit: setup ## tests of the pure code: seconds
	@$(BIN)/pytest tests/unit

chart: setup ## the Helm chart: lint, what it renders with its switches on and off, its alerts (builds helm, promtool once)
	@$(BIN)/pytest tests/chart

integration: setup ## tests with real Redis, runsc, vLLM, MLflow and Ray: minutes
	@$(BIN)/pytest tests/integration

e2e: setup ## on a real Kubernetes that it boots (root): chart, CRD, operator, and a short job with every part killed
	@$(BIN)/pytest tests/cluster

e2e-full: setup ## examples/tiny.yaml undisturbed on that Kubernetes, compared with a local run: about an hour
	@RSTAR2_IDLE_SECONDS=180 $(BIN)/pytest -s tests/cluster/test_operator_idle.py tests/cluster/full_e2e.py

# The cluster for the tests (tests/kube_node): a real Kubernetes node in namespaces of its own. NAME=... for another one.
.PHONY: cluster-up cluster-down cluster-status cluster-shell images
CLUSTER = $(BIN)/python -m tests.kube_node $(if $(NAME),--name $(NAME))

cluster-up: setup ## boot a real one-node Kubernetes (root); builds what it is made of the first time: some ten minutes
	@$(CLUSTER) up

cluster-down: setup ## end it and remove everything of it
	@$(CLUSTER) down

cluster-status: setup ## what runs on it, and where its logs are
	@$(CLUSTER) status

cluster-shell: setup ## a shell whose kubectl and helm speak to it
	@$(CLUSTER) shell

images: setup ## build the operator's and the judge's images (root; buildah), and say how they get onto the cluster
	@$(BIN)/python -m tests.cluster.project_images

.PHONY: docs docs-serve
docs: setup ## build the documentation site into build/site; fails on a broken link, a missing page or anchor
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build && echo "docs: open build/site/index.html"

docs-serve: setup ## show the documentation site at http://127.0.0.1:8000 and rebuild it after each change
	@$(BIN)/python -m mkdocs serve

format: setup ## rewrite the sources as ruff wants them
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

bench-judge: setup ## the judge's speed beside a fresh process a call, and a soak under kills: bench/results/judge.json
	@$(BIN)/python -m bench.judge

bench-verify: setup ## which answers are taken for equal, and how fast: bench/results/verify.json (RSTAR2_BENCHMARKS=folder)
	@$(BIN)/python -m bench.verify

bench-learning: setup ## three seeds with GRPO-RoC and with plain GRPO: writes bench/results/learning.json and the plot
	@$(BIN)/python bench/learning.py

bench-data: setup ## planted overlaps and near duplicates among 100,000 problems: writes bench/results/data.json
	@$(BIN)/python -m bench.data

crds: setup ## write crds/, the chart's copy, docs/manifest.md and examples/serve.yaml again from rstar2_train/api and the operator
	@$(BIN)/python -m rstar2_train.api.crd
	@$(BIN)/python -m scripts.docs.manifest_page
	@$(BIN)/python -m rstar2_operator.serving_manifests --out examples/serve.yaml examples/qwen3-14b.yaml

# Versions already in the lock stay; `make lock UPGRADE=--upgrade` takes newer ones. The marker that every line would
# share (the one platform that is locked) is cut off, which leaves it readable.
lock: setup ## pin every package again after a change of pyproject.toml, into requirements.lock
	@$$($(PYTHON) -I $(SETUP) --uv) pip compile --quiet --universal --all-extras --group dev $(UPGRADE) \
	  --no-emit-index-url --no-emit-find-links --annotation-style line --custom-compile-command "make lock" \
	  -p $(BIN)/python -o requirements.lock pyproject.toml
	@sed -i "s/ ; python_full_version < '3.14' and platform_machine == 'x86_64' and sys_platform == 'linux' / /" requirements.lock
	@! grep -n '://' requirements.lock

clean: ## remove .venv and caches; what training wrote (.rstar2) stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
