#!/usr/bin/env bash
# Correctness, speed and memory of training on one GPU, in less than 8 minutes:
#
#   scripts/gpu_check.sh [--json FILE]           on a GPU
#   scripts/gpu_check.sh --device cpu --small    a rehearsal, without one
#
# Nothing is installed. The machine needs torch, numpy, pyarrow, tokenizers, tqdm, tensorboard and transformers; pydantic,
# where it is missing, comes out of wheels that lie in scripts/wheels. The interpreter: PYTHON, or python3.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
wheels=$here/wheels
packages=pydantic,pydantic-core,annotated-types,typing-extensions,typing-inspection
unpacked=$(mktemp -d)
trap 'rm -rf "$unpacked"' EXIT

if ! "$python" -c 'import pydantic' 2>/dev/null; then
    if ! compgen -G "$wheels/*.whl" >/dev/null; then
        pins=$(grep -E "^(${packages//,/|})==" "$here/../constraints.txt" | tr '\n' ' ')
        version=$("$python" -c 'import sys; print("{}.{}".format(*sys.version_info))')
        {
            echo "gpu_check: this Python ($version) has no pydantic, and $wheels holds no wheels; where a package index is:"
            echo "  python3 -m pip download --no-deps --only-binary=:all: --python-version $version --implementation cp" \
                "--abi cp${version/./} --platform manylinux_2_17_x86_64 --dest scripts/wheels ${pins% }"
        } >&2
        exit 2
    fi
    for wheel in "$wheels"/*.whl; do
        "$python" -m zipfile -e "$wheel" "$unpacked"
    done
fi
PYTHONPATH=$here/../src:$unpacked${PYTHONPATH:+:$PYTHONPATH} "$python" "$here/gpu_check.py" "$@"
