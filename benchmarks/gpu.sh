#!/usr/bin/env bash
# One GPU, at most 6 minutes, torch, numpy and safetensors alone: see gpu.py. PYTHON names another interpreter.
set -euo pipefail
cd "$(dirname "$0")"
export PYTHONPATH=../scripts
exec timeout 360 "${PYTHON:-python3}" gpu.py "$@"
