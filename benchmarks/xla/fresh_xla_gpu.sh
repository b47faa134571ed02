#!/usr/bin/env bash
# Checks the extra xla-gpu in a fresh environment: no jax, no CUDA toolkit, nothing of this machine's.
#
#   bash benchmarks/xla/fresh_xla_gpu.sh [PYTHON]     # about 1.5 GB of downloads, two minutes
#
# Too large a download for every CI run. Ends with "fresh environment: fine", or with an error.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet "$repo[xla-gpu]"
"$place/venv/bin/pip" check
if "$place/venv/bin/pip" list --format=freeze | grep -E '^(jax|jaxlib|nvidia-(cublas|cudnn|cuda-runtime).*)=='; then
  echo "the extra brought more than the compiler" >&2
  exit 1
fi
cd "$place"
run() { env -i PATH=/usr/bin:/bin HOME="$place" LANG=C.UTF-8 "$place/venv/bin/analyze" "$@"; }
run estimate keras:MobileNetV2 --gpu a100-80gb --batch-size 32 --out run --json run.json --quiet
"$place/venv/bin/python" - <<'EOF'
import json
from pathlib import Path

told = json.loads(Path("run.json").read_text())
assert told["versions"]["xla_compiler"] == "jax-cuda12-pjrt 0.9.0", told["versions"]
assert told["step"]["jit"] is True, told["step"]
assert not any("CPU's" in why for why in told["uncertainty"]["because"]), told["uncertainty"]
assert not list(Path("run").glob(".xla*")), "the compiler left something behind"
print("plan of the card's own compiler, peak", told["peak"]["requested_bytes"], "bytes requested")
EOF
"$place/venv/bin/pip" uninstall --quiet --yes jax-cuda12-pjrt
run estimate keras:MobileNetV2 --gpu a100-80gb --batch-size 32 --out bare --json bare.json --quiet
grep -q "tf-memory-analyzer\[xla-gpu\]" bare.json
grep -q "up to twice too high" bare.json
echo "fresh environment: fine"
