# Commands for building, testing and measuring netstage. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
# Checks the Python package's Rust as maturin builds it, with any Python or none.
CLIPPY := PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1 $(CARGO) clippy --locked --workspace --all-targets
PROGRAM := target/release/netstage

.PHONY: help demo test check test-full build build-sim figures figures-stage figures-two-stages figures-vpn-tcp figures-prototype differ differ-stages fairness bench-sim bench-emulator bench-netem bench-traffic bench-pe bench-bgp bench-router bench-tcp bench-fleet bench-python audit bpf web protobuf python deb image release test-release fuzz vm uml need-build need-test need-vm lint

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: build ## Reproduce Figures 2 and 3 of the I2VFC paper: table and report
	@scripts/demo.sh $(PROGRAM)

build: need-build ## Build target/release/netstage
	@$(CARGO) build --release --locked -p netstage

build-sim: need-build ## Build target/release/netstage with the simulator only, without real packets
	@$(CARGO) build --release --locked -p netstage --no-default-features

test: need-test ## Run all tests; install the Debian packages they need
	CARGO="$(CARGO)" scripts/test.sh $(abspath $(PROGRAM))

check: need-build ## Check formatting, run clippy and the quick tests; needs no root
	$(CARGO) fmt --all --check
	$(CLIPPY) -- -D warnings
	NETSTAGE_TESTS=quick $(CARGO) test --locked --workspace

test-full: need-test need-vm ## Run all tests, long matrices, and every scenario with all repeats
	CARGO="$(CARGO)" NETSTAGE_TEST_FULL=1 scripts/test.sh full $(abspath $(PROGRAM))
	{ scripts/image.sh "$$(scripts/deb.sh $(PROGRAM) target/debian)" && scripts/service.sh; } || [ $$? -eq 4 ]

lint: need-test audit ## Check formatting, clippy, licenses, workflows, and that generated files are current
	$(CARGO) fmt --all --check
	$(CLIPPY) --release -- -D warnings
	$(CARGO) clippy --locked --release -p netstage --no-default-features -- -D warnings
	scripts/python.sh lint
	scripts/protobuf.sh verify
	scripts/bpf.sh verify
	scripts/web.sh verify
	scripts/actions.sh

figures: build ## Run the I2VFC paper's scenarios and write their results pages and docs/gallery.md
	scripts/results.py $(PROGRAM) scenarios/papers/i2vfc/results.md scenarios/papers/i2vfc/defaults.md

figures-stage: build ## Run the STAGE paper's scenarios on both stages (1 hour)
	scripts/results.py $(PROGRAM) scenarios/papers/stage/results.md

figures-vpn-tcp: build ## Run the VPN gateway paper's scenarios on both stages (root, 25 minutes)
	scripts/results.py $(PROGRAM) scenarios/papers/vpn-tcp/results.md

figures-two-stages: build ## Run examples on both stages and compare them (1 hour)
	scripts/results.py $(PROGRAM) scenarios/examples/two-stages.md

figures-prototype: build ## Run the I2VFC prototype's scenarios on both stages (1 hour)
	$(CARGO) build --release --locked -p netstage-bench --bin pe_rates
	python3 bench/pe/run.py
	scripts/results.py $(PROGRAM) scenarios/papers/i2vfc/prototype.md

differ: need-build ## Check 5,000 random scenarios for what must hold in any simulation (COUNT, SEED)
	@$(CARGO) run --release --locked -p netstage-differ -- $(or $(COUNT),5000) $(SEED)

differ-stages: build ## Compare the simulator with real packets and ns-3 on random scenarios (root, 3 hours; OPTIONS)
	@$(CARGO) build --release --locked -p netstage-differ
	scripts/packages.sh bench/packages.txt
	tests/differ/stages.py $(OPTIONS)

fairness: need-build ## Judge controls in 800 random cores that VPNs share (1 hour; SEED: the date, COUNT, PACKETS, LAWS)
	@$(CARGO) run --release --locked -p netstage-fairness -- run $(or $(SEED),$(shell date +%Y%m%d)) $(or $(COUNT),800) \
		out/fairness/$(or $(SEED),$(shell date +%Y%m%d)) $(PACKETS:%=--packets %) $(LAWS)

bench-sim: build ## Compare the simulator with ns-3 and ns-2
	scripts/packages.sh bench/packages.txt
	python3 bench/sim/run.py

bench-emulator: ## Measure the accuracy and cost of the link emulator (root, idle machine)
	$(CARGO) test --release --locked -p netstage-emulator --test emulator -- --ignored --nocapture

bench-netem: build need-vm ## Compare the link emulator with netem in a virtual machine
	bench/netem/run.sh $(PROGRAM)

bench-traffic: need-build ## Compare the traffic engine with iperf3, iperf2, nuttcp, MGEN and D-ITG (root)
	$(CARGO) build --release --locked -p netstage-bench --bin flow
	scripts/packages.sh bench/traffic/packages.txt
	python3 bench/traffic/run.py

bench-pe: build ## Measure CPU and memory of provider edge routers (Figures 11 to 13) and of the engine
	$(CARGO) build --release --locked -p netstage-bench --bin pe_rates
	python3 bench/pe/run.py

bench-bgp: need-build ## Send a million routes through BIRD, FRR, GoBGP and OpenBGPD (root)
	$(CARGO) build --release --locked -p netstage-bench --bin bgp_rates
	scripts/packages.sh bench/bgp/packages.txt
	python3 bench/bgp/run.py

bench-router: build ## Measure forwarding rates of routers for docs/results (root, 1 hour; OPTIONS)
	$(CARGO) build --release --locked -p netstage-bench --bin router_rates --bin forward_rates
	scripts/packages.sh bench/router/packages.txt
	bench/router/run.py $(OPTIONS)

bench-tcp: build ## Compare the cost of the TCP observer with ss, bpftrace and perf (root, idle machine)
	scripts/packages.sh bench/tcp/packages.txt
	bench/tcp/run.py --netstage $(PROGRAM)

bench-fleet: build ## Run a thousand agents under one controller (10 GB of memory)
	$(CARGO) build --release --locked -p netstage-bench --bin fleet_rates
	bench/fleet/run.py --netstage $(PROGRAM)

deb: build ## Build a Debian package for this host in target/debian
	@scripts/packages.sh scripts/packages-deb.txt
	@scripts/deb.sh $(PROGRAM) target/debian

image: build ## Build a container image with podman or docker, and run a scenario in it
	@scripts/packages.sh scripts/packages-deb.txt
	@scripts/image.sh "$$(scripts/deb.sh $(PROGRAM) target/debian)"

release: need-build ## Build wheel, archive, Debian package and checksums in target/release-files
	@scripts/packages.sh scripts/packages-release.txt
	scripts/release.sh

test-release: ## Install the release files in minimal Debian systems and time the first report (root)
	@scripts/packages.sh scripts/packages-test-release.txt
	scripts/test-release.sh target/release-files

python: build ## Build the Python package, install it in python/.venv, and test it
	@scripts/packages.sh scripts/packages-python.txt
	scripts/python.sh test $(abspath $(PROGRAM))

bench-python: build ## Compare the Python package with the program, and Ray with threads
	@scripts/packages.sh scripts/packages-python.txt
	scripts/python.sh bench $(abspath $(PROGRAM))

audit: ## Check licenses, bans, sources and known vulnerabilities of dependencies (ADVISORIES=required)
	scripts/audit.sh

bpf: ## Compile the kernel programs (needs clang)
	@scripts/packages.sh scripts/packages-bpf.txt
	scripts/bpf.sh build

web: ## Build web/dist (needs Node.js)
	scripts/web.sh build

protobuf: ## Generate the Rust code of the protocols
	scripts/protobuf.sh build

fuzz: ## Fuzz every decoder for SECONDS_EACH (60) and report the coverage
	scripts/fuzz.sh $(or $(SECONDS_EACH),60) $(TARGETS)

vm: build need-vm ## Run COMMAND in a virtual machine with Debian's kernel, which has netem and MPLS
	scripts/vm.sh $(OPTIONS) $(or $(COMMAND),$(PROGRAM) doctor)

uml: need-build need-vm ## Test User-mode Linux, whose kernel has MPLS, as a router (root)
	$(CARGO) test --release --locked -p netstage --test network -- --ignored --nocapture another_kernel

need-build:
	@scripts/need-build.sh

need-vm:
	@scripts/packages.sh scripts/packages-vm.txt

need-test: need-build
	@scripts/packages.sh scripts/packages-test.txt
