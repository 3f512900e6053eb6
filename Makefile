# Everything that is done with this repository. CI calls only these.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

GO ?= go
BIN := bin/trtship
TOOLS := $(GO) tool -modfile=.github/tools/go.mod
# go-nvml's header marks old functions as deprecated, hundreds of lines of it.
export CGO_CFLAGS := -g -O2 -Wno-deprecated-declarations
PYTHON_ENVS := base triton
TEST_FLAGS ?=
FUZZ_FLAGS ?=
FUZZ_TIME ?=
COVER_FLOOR ?= 85
PART ?= all

.PHONY: help build setup demo test test-gpu check lint gosec vuln fmt golden bench faults fuzz cover test-act test-consumers gpu-check clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/trtship
	@mkdir -p bin
	$(GO) build -o $(BIN) ./cmd/trtship

setup: build ## install the locked Python environments into the user's cache folder, listing them first
	@$(BIN) env install $(PYTHON_ENVS) >/dev/null
	@$(BIN) env list

# A fresh network namespace (unshare -n) has its loopback down, and servers listen on it.
define loopback
@! ip -o link show lo 2>/dev/null | grep -qv UP || ip link set lo up 2>/dev/null || true
endef

demo: setup ## run examples/digits from PyTorch to a served Triton repository
	$(loopback)
	$(BIN) run examples/digits/trtship.yaml

test: setup ## run all tests that need no GPU, and print coverage by package
	$(loopback)
	@mkdir -p coverage
	@set -o pipefail; $(GO) test -timeout 40m -skip '^(TestBench|TestBenchStore|TestBenchGateAndRenderings)$$' -coverpkg=./... -coverprofile=coverage/profile $(TEST_FLAGS) ./... 2>&1 | tee coverage/test.log
	@$(GO) run ./internal/testkit/cover -floor $(COVER_FLOOR) coverage/profile
	@grep -E '^(ok|FAIL|---|panic)' coverage/test.log | sed 's/coverage: .*//'

test-gpu: setup ## run the tests that need an NVIDIA GPU and TensorRT; fails if there is none
	$(GO) test -timeout 60m -tags gpu -count=1 -run '^TestGPU' ./internal/engine

check: lint gosec test ## lint, gosec, all tests, and the race detector where goroutines meet
	$(GO) test -race -timeout 40m ./internal/store ./internal/pipeline ./internal/proc ./internal/tensor ./internal/cli \
	  ./internal/ort ./internal/dataset ./internal/calibration ./internal/worker ./internal/github ./internal/provenance ./internal/triton/load ./internal/triton/registry

lint: ## gofumpt, go vet, staticcheck, actionlint
	@bad=$$($(TOOLS) gofumpt -l $$(git ls-files '*.go' | grep -v '\.pb\.go$$')); test -z "$$bad" || { echo "gofumpt: $$bad"; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags gpu ./internal/engine
	$(TOOLS) staticcheck ./...
	@if ls .github/workflows/*.yml >/dev/null 2>&1; then $(TOOLS) actionlint && $(TOOLS) actionlint -config-file .github/actionlint.yaml examples/workflows/*.yml; fi

gosec: ## look for insecure code; .github/gosec.rules says what is let off, and why
	@all=$$(awk '/^G/ && $$2 == "*" {printf "%s%s", sep, $$1; sep = ","}' .github/gosec.rules); \
	  some=$$(awk '/^G/ && $$2 != "*" {printf "%s%s:%s", sep, $$2, $$1; sep = ";"}' .github/gosec.rules); \
	  $(GO) tool -modfile=.github/tools/gosec.mod gosec -quiet -exclude-generated -exclude="$$all" -exclude-rules="$$some" ./...

vuln: ## look for known vulnerabilities in what is called (asks vuln.go.dev)
	$(TOOLS) govulncheck ./...

fmt: ## format all Go files with gofumpt
	$(TOOLS) gofumpt -w $$(git ls-files '*.go' | grep -v '\.pb\.go$$')

golden: ## write the golden files: docs, schema, action.yml, expected outputs
	$(GO) test -run 'Golden|Current' $$($(GO) list -f '{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}' ./... | awk '/internal\/testkit( |$$)/{print $$1}') -update

BENCH_DIR ?= $(CURDIR)/.trtship/bench
bench: setup ## measure against the peers, in one run, as ratios; writes docs/verification/bench-*.json
	@$(BIN) env install bench >/dev/null
	@mkdir -p $(BENCH_DIR)
	TRTSHIP_RECORD_BENCH=1 $(GO) test -count=1 -run TestBench ./bench/gate
	$(GO) run ./bench/store -dir $(BENCH_DIR) -o docs/verification/bench-store.json
	$(GO) run ./bench/compare -python $$($(BIN) env path base) -o docs/verification/bench-compare.json
	$(GO) run ./bench/onnxslim -python $$($(BIN) env path bench) -models $(BENCH_DIR)/onnxslim -large -json docs/verification/bench-onnxslim.json
	test -d $(BENCH_DIR)/calibrate || $$($(BIN) env path bench) bench/calibrate_models.py $(BENCH_DIR)/calibrate
	$(GO) run ./bench/calibrate -python $$($(BIN) env path bench) -data $(BENCH_DIR)/calibrate -json docs/verification/bench-calibrate.json

# The packages whose tests count faults or hold field failures.
FAULT_PACKAGES = $$(grep -rlE 'HoldsCase\(|RecordFaults\(|BreakReplies\(|NewFaults\(' --include='*_test.go' internal stages report | xargs -n1 dirname | sort -u | grep -v '^internal/testkit$$' | sed 's|^|./|')
faults: build ## kill runs at random moments and every failpoint, fill the disk, break replies and children, with real torch; counts go to docs/verification/faults.json
	$(loopback)
	TRTSHIP_RECORD_FAULTS=1 $(GO) test -timeout 120m -count=1 -tags faults -v $(FAULT_PACKAGES)

fuzz: ## fuzz each target 200,000 times (5,000 with ONNX Runtime) and let it find planted bugs, half an hour on 2 cores (FUZZ_TIME=10s: each target for that long); counts go to docs/verification/faults.json
	$(GO) run ./internal/testkit/fuzz -record $(if $(FUZZ_TIME),-time $(FUZZ_TIME)) $(FUZZ_FLAGS)

cover: ## open the coverage of the last `make test` by line
	$(GO) tool cover -html=coverage/profile

test-act: ## run the GitHub workflows and the action locally with act (needs Docker; TRTSHIP_ACT=if-possible goes on without)
	$(loopback)
	@rc=0; $(GO) test -timeout 60m -count=1 -tags act -run Act -v ./internal/github || rc=$$?; \
	  $(GO) test -count=1 -run VerificationIsCurrent ./internal/cli -update >/dev/null; exit $$rc

test-consumers: ## read our JUnit files with parsers that other tools use (needs node and npm)
	.github/consumers/run

gpu-check: ## prove on a GPU what the README says of GPUs (PART=... for one part, PART=merge to merge)
	@test -x .gpu/gpucheck || { $(GO) build -trimpath -ldflags "-s -w" -o .gpu/gpucheck ./bench/gpucheck && \
	  $(GO) test -c -trimpath -ldflags "-s -w" -tags gpu -o .gpu/engine.gpu.test ./internal/engine; }
	@if [ "$(PART)" != merge ]; then .gpu/gpucheck -part "$(PART)" -out .gpu/parts; fi
	@if [ "$(PART)" = merge ] || [ "$(PART)" = all ]; then .gpu/gpucheck -merge .gpu/parts; fi

clean: ## remove what was built; the store, runs and installed environments stay
	rm -rf bin coverage
