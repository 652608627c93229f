#!/usr/bin/env bash
# A virtual environment with this package, vLLM's CPU build, and what the demo and the tests need.
#
#   bash scripts/setup_cpu.sh [FOLDER]     (default: .venv; PYTHON=... chooses the interpreter, 3.11 or newer)
#
# Run it again at will: it does nothing while pyproject.toml and this script are as they were.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1:-.venv}

python=${PYTHON:-}
for candidate in python3.11 python3.12 python3.13 python3; do
    [[ -n $python ]] && break
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
    fi
done
if [[ -z $python ]]; then
    echo "setup: Python 3.11 or newer is needed (PYTHON=/path/to/python chooses one)" >&2
    exit 1
fi

stamp=$folder/.vllm-guided-setup
state=$(cat pyproject.toml scripts/setup_cpu.sh vllm_guided/demo/setup_cpu.py | cksum; pwd)
if [[ -x $folder/bin/python && -f $stamp && $(cat "$stamp") == "$state" ]] \
    && "$folder/bin/python" -c 'import vllm_guided' 2>/dev/null; then
    echo "setup: $folder is up to date"
    exit 0
fi

[[ -x $folder/bin/python ]] || "$python" -m venv "$folder"
if ! "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "setup: $folder has no pip (on Debian: apt-get install python3-venv)" >&2
    exit 1
fi
echo "setup: installing into $folder (vLLM for CPU, torch and their dependencies: about 3.5 GB, some minutes)"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable ".[cpu,test]"
"$folder/bin/python" -m vllm_guided.demo.setup_cpu
"$folder/bin/vllm-guided" warmup
printf '%s' "$state" >"$stamp"
echo "setup: done"
