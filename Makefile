# Every target sets itself up: a fresh Debian machine with Python 3.11 needs nothing else. `make` shows what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
BIN := .venv/bin
MODELS := examples/digits/models/small.onnx examples/digits/models/big.onnx
MULTI := $(addprefix examples/multi_edge/models/,embedder.onnx digits.onnx belt.onnx)
SCENES := $(addprefix examples/detection/models/,small.onnx big.onnx)
#: ARGS="--nodes edge0,cloud0" for up, ARGS=--tls for up and the demos, ARGS="-k contract" for test
ARGS ?=
#: of the stateful model; 500 take about ten minutes
EXAMPLES ?= 500
#: test processes at a time: those of slow tests wait for other processes most of the time
PROCESSES = 6
#: how often `make faults` runs each of them
REPEAT ?= 1

#: the program that builds images, and what it builds: the targets that the Dockerfile's head names
BUILD ?= docker build
IMAGES = $(shell sed -n 's/^\#   docker build --target \([^ ]*\) .*/\1/p' Dockerfile)
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)

.PHONY: help setup setup-demo setup-run up demo demo-multi-edge demo-federated demo-loop demo-faces demo-text test test-all test-kubernetes test-cluster faults fuzz mutations mutations-random check check-wheels images contract docs licences model train clean soak bench

# the set-up has three sizes, and all write .venv
.NOTPARALLEL:

help: ## Show this list
	@printf 'halimede: edge-cloud collaborative inference on an MQTT v5 bus\n\n'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | \
	  while IFS=$$'\t' read -r name text; do printf '  make %-15s %s\n' "$$name" "$$text"; done
	@printf '\nEach does its own set-up (.venv, pinned packages, Mosquitto).\n'

setup: ## Set up this machine: .venv with the pinned packages, and Mosquitto
	@scripts/setup.sh

setup-demo: ## Set up what `make demo` needs: a third of the packages, in the same .venv
	@scripts/setup.sh demo

setup-run: ## Set up what `make up` needs: also cameras, TensorFlow Lite, identities and traces
	@scripts/setup.sh run

up: setup-run $(MODELS) ## Run the whole system here until Ctrl-C (ARGS="--nodes edge0,cloud0")
	@exec $(BIN)/halimede up $(ARGS)

demo: setup-demo $(MODELS) ## Answer handwritten digits on two edge nodes and one cloud node; ends with a report
	@exec $(BIN)/halimede demo --out build/demo $(ARGS)

demo-multi-edge: setup-run $(MULTI) ## Three cameras, three nodes, one job, and a node that is killed; ends with a page
	@exec $(BIN)/python -m examples.multi_edge.demo $(ARGS)

demo-loop: setup-run ## A stream drifts, and the service learns it; a bad candidate is refused; ends with a page
	@$(BIN)/python -m examples.learning_loop.demo $(ARGS)

demo-federated: setup-demo ## Five nodes with two digits each train one model; with drop-outs and compression; ends with a page
	@$(BIN)/python -m examples.federated.demo $(ARGS)

demo-faces: setup-run ## A small and a big face detector of others, on cameras over RTSP and from files; ends with a page
	@$(BIN)/python -m examples.real_pairs.demo faces $(ARGS)

demo-text: ## A small and a big reader of text of others, on 400 words; ends with a page
	@scripts/setup.sh fonts
	@$(BIN)/python -m examples.real_pairs.demo text $(ARGS)

# hundreds of processes start: none compiles again what it imports, or reads the authorities of the internet, where no
# test goes
test test-all: export PYTHONDONTWRITEBYTECODE :=
# a test that the machine has stopped runs once more; a change that breaks more than 20 is reported at once
test test-all: REPEAT_STALLED = -p tests.stalls --max-suite-reruns=20 --rerun-show-tracebacks
# several test processes share the cores: linear algebra in as many threads each would only wait for itself
test test-all test-kubernetes faults: export OMP_NUM_THREADS = 1
test: QUICK = -m "not slow" --hypothesis-profile=quick
# the quick tests seldom wait, and each process takes 15 s to find all tests
test: PROCESSES = 4
test: test-all ## Run the quick tests, with real Mosquitto and Chromium, in some minutes (ARGS="-k name")
test-all: setup $(MODELS) $(MULTI) $(SCENES) ## Run all tests, the slow ones as well: what .ci/run runs (ARGS="-k name")
	@scripts/setup.sh browser
	@scripts/setup.sh prometheus
	@$(if $(QUICK),,scripts/setup.sh node)
	@$(if $(ARGS),,scripts/compile_tests.sh)
	@echo '==> pytest $(QUICK)'
	@SSL_CERT_FILE=/dev/null $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder \
	  $(REPEAT_STALLED) $(QUICK) $(ARGS)

test-kubernetes: setup $(MODELS) ## Run the Kubernetes tests alone, on a double or on a real API server (KUBEBUILDER_ASSETS=folder)
	@echo '==> pytest tests/kubernetes'
	@$(BIN)/python -m pytest -n $(if $(KUBEBUILDER_ASSETS),2,4) --dist loadfile tests/kubernetes tests/seeds/test_facts.py \
	  $(wildcard tests/faults/test_fault_1[234]* tests/attacks/test_attack_20*) $(ARGS)

# KUBECONFIG=file: on a cluster that there is; KUBE_BINARIES=folder: on one that it starts, as root
test-cluster: setup $(MODELS) ## Run the operator's suite on real kubelets (KUBE_BINARIES=folder, or KUBECONFIG=file)
	@$(BIN)/python -m tests.cluster $(ARGS)

test-brokers: setup $(MODELS) ## Try each MQTT broker of this machine (BROKERS=folder); ends with a table (ARGS="--repeat 1")
	@BROKERS=$(BROKERS) $(BIN)/python -m tests.brokers $(ARGS)

test-homeassistant: setup ## Run the bridge with a real Home Assistant (HOMEASSISTANT=folder, docs/home-assistant.md); ends with a table
	@HOMEASSISTANT=$(HOMEASSISTANT) $(BIN)/python -m tests.homeassistant $(ARGS)

faults: setup $(MODELS) ## Inject every fault and attack of the list, each REPEAT times; ends with a table (REPEAT=10)
	@echo '==> faults and attacks, $(REPEAT) times'
	@HALIMEDE_FAULTS=whole $(BIN)/python -m pytest -p tests.repeat --repeat $(REPEAT) -n 6 --dist worksteal tests/faults tests/attacks $(ARGS)

fuzz: setup ## Look for bytes that the MQTT parser or the decoding of pictures does not stand (ARGS="--seconds 600")
	@$(BIN)/python -m tests.fuzz $(ARGS)

mutations: setup $(MODELS) ## See that tests fail when the code is wrong; ends with a table (ARGS="-k lease")
	@$(if $(ARGS),,echo '==> each type without one of its fields' && $(BIN)/python -m tests.seeds.removal)
	@$(BIN)/python -m tests.mutations $(ARGS)

mutations-random: setup $(MODELS) ## Try one-token mutations drawn at random (ARGS="--seed 1a2b3c4d --count 40 halimede/training")
	@nice -n 10 $(BIN)/python -m tests.mutations.random_draw $(ARGS)

model: setup ## Let anything happen to a simulated system, in any order, for long (EXAMPLES=2000)
	@$(BIN)/python -m tests.stateful --examples $(EXAMPLES) $(ARGS)

soak: setup $(MODELS) ## Send 200,000 frames through 13 kill -9s, with a table (ARGS="--frames 5000 --large 100" for a short one)
	@$(BIN)/python -m bench.soak $(ARGS)

bench: setup $(if $(NAME),$(MODELS)) ## Measure (NAME=offload ARGS="--payloads 150528 --rounds 3"), or list the measurements (without NAME)
	@$(BIN)/python -m bench$(if $(NAME),.$(NAME)) $(ARGS)

check: setup ## Check style, types, layers and what is generated from the code
	@echo '==> ruff check'
	@$(BIN)/ruff check --quiet .
	@echo '==> ruff format --check'
	@$(BIN)/ruff format --quiet --check . || { echo 'Error: not formatted: run $(BIN)/ruff format' >&2; exit 1; }
	@echo '==> mypy (strict; of tests and bench, names and calls)'
	@$(BIN)/mypy --no-error-summary
	@echo '==> names, folders and complexity'
	@$(BIN)/python scripts/check_house.py
	@echo '==> the documents'
	@$(BIN)/python scripts/check_documents.py
	@$(BIN)/codespell $$(git ls-files '*.md' ':!topics.md')
	@echo '==> the licences of all packages'
	@$(BIN)/python scripts/licences.py
	@echo '==> the workflows of the forge'
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@mkdir -p build
	@$(BIN)/zizmor --offline --quiet .github/workflows > build/workflows.log || { cat build/workflows.log; exit 1; }
	@echo '==> import-linter'
	@$(BIN)/lint-imports --no-cache > build/imports.log 2>&1 || { cat build/imports.log; exit 1; }
	@echo '==> topics.md is what the code says'
	@$(BIN)/python -m halimede.contract --check
	@echo '==> deploy/crds is what the code says'
	@$(BIN)/python -m halimede.api.crd --check
	@echo "==> the inference protocol's messages are what its file says"
	@$(BIN)/python -m halimede.serving.generate_descriptor --check
	@echo '==> docs/reference is what the code says'
	@$(BIN)/python -m scripts.reference --check
	@echo '==> deploy/monitoring is what the code says'
	@$(BIN)/python -m scripts.monitoring --check
	@echo 'All checks passed.'

check-wheels: setup ## Check that all packages of the images have wheels for amd64 and arm64 (reads the package index)
	@$(BIN)/python scripts/check_wheels.py

images: ## Build all images, one after the other, so that they share layers (BUILD="podman build --format docker")
	@for target in $(IMAGES); do \
	  echo "==> halimede/$$target:$(VERSION)"; $(BUILD) --target $$target -t halimede/$$target:$(VERSION) . || exit 1; done

contract: setup ## Write topics.md, docs/reference, docs/asyncapi.json, deploy/crds and deploy/monitoring from the code
	@$(BIN)/python -m halimede.contract --write
	@$(BIN)/python -m halimede.api.crd --write
	@$(BIN)/python -m halimede.serving.generate_descriptor --write
	@$(BIN)/python -m scripts.reference --write
	@$(BIN)/python -m scripts.monitoring --write
	@echo 'topics.md, docs/reference, deploy/crds and deploy/monitoring are written.'

docs: setup ## Build the documents as a site into build/pages, and check all links
	@$(BIN)/python scripts/site.py

licences: setup ## Write docs/licences.md, after a change of constraints.txt (downloads TensorFlow)
	@$(BIN)/python scripts/licences.py --write

train: $(MODELS) $(MULTI) $(SCENES) ## Train the models of the examples

# both come from one run
$(MODELS) &: examples/digits/train.py examples/digits/data.py | setup-demo
	@echo '==> training the models of the digits example'
	@$(BIN)/python -m examples.digits.train
	@touch $(MODELS)

$(MULTI) &: $(addprefix examples/multi_edge/,train.py boards.py pictures.py) examples/digits/data.py | setup-demo
	@echo '==> training the models of the multi-edge demo'
	@$(BIN)/python -m examples.multi_edge.train
	@touch $(MULTI)

$(SCENES) &: $(addprefix examples/detection/,train.py detector.py scenes.py) | setup-demo
	@echo '==> training the detectors of the detection example'
	@$(BIN)/python -m examples.detection.train
	@touch $(SCENES)

clean: ## Remove what was built and cached (not .venv, not HALIMEDE_HOME)
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
