#!/usr/bin/env bash
# Builds the Python package and installs it in python/.venv (build), checks its style (lint), tests it (test), runs its
# long tests as well (test-full), or measures it (bench). PROGRAM is the program to compare it with.
set -euo pipefail
cd "$(dirname "$0")/../python"

python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || { echo "error: Python is too old; the package needs 3.11 or newer" >&2; exit 1; }
export NETSTAGE=${2:-$PWD/../target/release/netstage}
# The package shares compiled crates with the program.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../target}

install() {
    .venv/bin/pip install --quiet --disable-pip-version-check "$@"
}

build() {
    [ -x .venv/bin/pip ] || python3 -m venv .venv
    install -r requirements.txt
    rm -rf dist
    .venv/bin/maturin build --release --out dist
    install --force-reinstall --no-deps dist/*.whl
}

case $1 in
build)
    build
    echo "wheel: python/$(ls dist/*.whl)"
    ;;
lint)
    [ -x .venv/bin/pip ] || python3 -m venv .venv
    install -r requirements.txt
    .venv/bin/ruff format --check --quiet .
    .venv/bin/ruff check --quiet .
    ;;
test)
    build
    .venv/bin/pytest --quiet -rs
    ;;
test-full)
    build
    install -r requirements-full.txt
    .venv/bin/pytest --quiet -rs -m "long or not long"
    ;;
bench)
    build
    install -r requirements-full.txt
    .venv/bin/python ../bench/python/run.py
    ;;
*)
    echo "usage: $0 build|lint|test|test-full|bench [PROGRAM]" >&2
    exit 2
    ;;
esac
