#!/usr/bin/env bash
# A simulated card in a fresh environment: no compiler in PATH, no network after the installation.
#
#   bash benchmarks/simulated_card/fresh_simulated_card.sh [PYTHON [TENSORFLOW]]   # about 1 GB of downloads, some minutes
#   bash benchmarks/simulated_card/fresh_simulated_card.sh python3.11 2.19.1        # with that version of TensorFlow
#
# The wheel is built with the compiler that pip brings where there is none; nothing else is shared with this
# machine but its kernel and its Python. Ends with "fresh environment: fine", or with an error.
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:-python3}
tensorflow=tensorflow${2:+==$2}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
mkdir "$place/home" "$place/empty"
env -u CC PATH="$place/empty" SIMULATED_CARD_WHEEL_PLATFORM=manylinux2014_x86_64 \
  "$place/venv/bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$place/wheel" "$repo"
ls "$place/wheel"
"$place/venv/bin/pip" install --quiet "$place"/wheel/*.whl "$tensorflow"
"$place/venv/bin/pip" check
cd "$place"
run() {
  unshare --net --map-root-user env -i PATH="$place/empty" HOME="$place/home" LANG=C.UTF-8 \
    "$place/venv/bin/analyze" "$@"
}
if env -i PATH="$place/empty" "$place/venv/bin/python" -c "import shutil, sys; sys.exit(not any(map(shutil.which, ('cc', 'gcc', 'clang', 'ptxas'))))"; then
  echo "there is a compiler in the empty PATH" >&2
  exit 1
fi
run trace keras:ResNet50 --batch-size 64 --gpu t4 --out run --json run.json --quiet
"$place/venv/bin/python" - <<'EOF'
import json
from pathlib import Path

told = json.loads(Path("run.json").read_text())
assert told["kind"] == "simulated_card", told["kind"]
assert len(told["steps"]) == 3, told["steps"]
assert told["error"] is None, told["error"]
print("peak", told["steps"][-1]["requested_bytes"], "bytes requested, jit", told["step"]["jit"])
EOF
echo "fresh environment: fine"
