# netstage: the commands a person needs. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
CARGO ?= cargo
# The package's Rust is checked as maturin builds it, whatever Python there is.
CLIPPY := PYO3_NO_PYTHON=1 PYO3_BUILD_EXTENSION_MODULE=1 $(CARGO) clippy --locked --workspace --all-targets
PROGRAM := target/release/netstage

.PHONY: help demo test check test-full build figures figures-stage figures-two-stages figures-vpn-tcp figures-prototype bench-sim bench-emulator bench-netem bench-traffic bench-pe bench-bgp bench-router bench-tcp bench-fleet bench-python audit bpf web protobuf python deb image fuzz vm uml setup need-build need-test need-vm lint

help: ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: build ## Reproduce Figures 2 and 3 of the I2VFC paper: table and report
	@scripts/demo.sh $(PROGRAM)

build: need-build ## Build target/release/netstage
	@$(CARGO) build --release --locked -p netstage

test: need-test ## All tests, from nothing: installs the Debian packages it lacks
	CARGO="$(CARGO)" scripts/test.sh $(abspath $(PROGRAM))

check: need-build ## Every few minutes: formatting, clippy, quick tests; no privilege
	$(CARGO) fmt --all --check
	$(CLIPPY) -- -D warnings
	NETSTAGE_TESTS=quick $(CARGO) test --locked --workspace

test-full: need-test need-vm ## Long matrices and every scenario with all its repeats
	CARGO="$(CARGO)" NETSTAGE_TEST_FULL=1 scripts/test.sh full $(abspath $(PROGRAM))
	{ scripts/image.sh "$$(scripts/deb.sh $(PROGRAM) target/debian)" && scripts/service.sh; } || [ $$? -eq 4 ]

lint: need-test audit ## Formatting, clippy, audit, and whether committed objects are what their sources give
	$(CARGO) fmt --all --check
	$(CLIPPY) --release -- -D warnings
	scripts/python.sh lint
	scripts/protobuf.sh verify
	scripts/bpf.sh verify
	scripts/web.sh verify

figures: build ## Run every paper scenario and write docs/results and docs/gallery.md
	scripts/results.py $(PROGRAM) scenarios/papers/i2vfc/results.md scenarios/papers/i2vfc/defaults.md

figures-stage: build ## Run the STAGE paper's scenarios on both stages (an hour of real time)
	scripts/results.py $(PROGRAM) scenarios/papers/stage/results.md

figures-vpn-tcp: build ## Run the VPN paper's scenarios on both stages, as root (25 minutes of real time)
	scripts/results.py $(PROGRAM) scenarios/papers/vpn-tcp/results.md

figures-two-stages: build ## Run examples on both stages and compare (an hour of real time)
	scripts/results.py $(PROGRAM) scenarios/examples/two-stages.md

figures-prototype: build ## The I2VFC prototype's figures on both stages (an hour of real time)
	$(CARGO) build --release --locked -p netstage-bench --bin pe_rates
	python3 bench/pe/run.py
	scripts/results.py $(PROGRAM) scenarios/papers/i2vfc/prototype.md

bench-sim: build ## netstage, ns-3 and ns-2 side by side in one run
	scripts/packages.sh bench/packages.txt
	python3 bench/sim/run.py

bench-emulator: ## Accuracy and cost of the link emulator (root, a quiet machine)
	$(CARGO) test --release --locked -p netstage-emulator --test emulator -- --ignored --nocapture

bench-netem: build need-vm ## The link emulator beside the kernel's netem, in a virtual machine
	bench/netem/run.sh $(PROGRAM)

bench-traffic: need-build ## The traffic engine beside iperf3, iperf2, nuttcp, MGEN and D-ITG (root)
	$(CARGO) build --release --locked -p netstage-bench --bin flow
	scripts/packages.sh bench/traffic/packages.txt
	python3 bench/traffic/run.py

bench-pe: build ## Processor and memory of provider edge routers: Figures 11 to 13, and the engine alone
	$(CARGO) build --release --locked -p netstage-bench --bin pe_rates
	python3 bench/pe/run.py

bench-bgp: need-build ## A million routes through BIRD, FRR, GoBGP and OpenBGPD (root)
	$(CARGO) build --release --locked -p netstage-bench --bin bgp_rates
	scripts/packages.sh bench/bgp/packages.txt
	python3 bench/bgp/run.py

bench-router: build ## What routers carry, side by side and under test, into docs/results (root, an hour; OPTIONS)
	$(CARGO) build --release --locked -p netstage-bench --bin router_rates --bin forward_rates
	scripts/packages.sh bench/router/packages.txt
	bench/router/run.py $(OPTIONS)

bench-tcp: build ## What watching TCP costs, beside ss, bpftrace and perf (root, a quiet machine)
	scripts/packages.sh bench/tcp/packages.txt
	bench/tcp/run.py --netstage $(PROGRAM)

bench-fleet: build ## A thousand agents under one controller, as processes (10 GB of memory)
	$(CARGO) build --release --locked -p netstage-bench --bin fleet_rates
	bench/fleet/run.py --netstage $(PROGRAM)

deb: build ## Make a Debian package, in target/debian
	@scripts/packages.sh scripts/packages-deb.txt
	@scripts/deb.sh $(PROGRAM) target/debian

image: build ## Put that package into a container image, by podman or docker, and run a scenario there
	@scripts/packages.sh scripts/packages-deb.txt
	@scripts/image.sh "$$(scripts/deb.sh $(PROGRAM) target/debian)"

python: build ## Build the Python package's wheel, install it into python/.venv, and test it
	@scripts/packages.sh scripts/packages-python.txt
	scripts/python.sh test $(abspath $(PROGRAM))

bench-python: build ## What the Python package costs over the program, and Ray over threads
	@scripts/packages.sh scripts/packages-python.txt
	scripts/python.sh bench $(abspath $(PROGRAM))

audit: ## Licences, bans and sources of what we depend on, by cargo-deny
	scripts/audit.sh

bpf: ## Rebuild the kernel programs' objects (needs clang)
	@scripts/packages.sh scripts/packages-bpf.txt
	scripts/bpf.sh build

web: ## Rebuild web/dist (needs Node)
	scripts/web.sh build

protobuf: ## Generate the Rust of the protocols
	scripts/protobuf.sh build

fuzz: ## Fuzz every decoder, SECONDS_EACH (default 60) each, and say what that reaches
	scripts/fuzz.sh $(or $(SECONDS_EACH),60) $(TARGETS)

vm: build need-vm ## Run COMMAND in a virtual machine with Debian's kernel, which has netem and MPLS
	scripts/vm.sh $(OPTIONS) $(or $(COMMAND),$(PROGRAM) doctor)

uml: need-build need-vm ## Test user-mode-linux, whose kernel has MPLS, as a router (root)
	$(CARGO) test --release --locked -p netstage --test network -- --ignored --nocapture another_kernel

need-build:
	@scripts/need-build.sh

need-vm:
	@scripts/packages.sh scripts/packages-vm.txt

need-test: need-build
	@scripts/packages.sh scripts/packages-test.txt
