#!/bin/sh
# Builds the kernels with AddressSanitizer and UndefinedBehaviorSanitizer and runs their tests on that build.
# Usage: tools/sanitize.sh [arguments for pytest]; PYTHON chooses the interpreter.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
build=$root/build/sanitize
compiler=${CXX:-c++}

"$python" -m cmake -S "$root" -B "$build" -DFASTMAX_SANITIZE=address,undefined -DFASTMAX_LEVELS=all
"$python" -m cmake --build "$build" --parallel

# A copy of the package, so that the build for everyday use stays as it is.
rm -rf "$build/src"
cp -r "$root/src" "$build/src"
cp "$build/_kernels.so" "$build/src/fastmax/backends/native/_kernels.so"

cd "$root"
# Without site (-S), for an editable install would put the everyday package in front of the copy.
packages=$("$python" -c 'import os, sys; print(":".join(x for x in sys.path if os.path.basename(x) == "site-packages"))')
sanitized() {
  # Leaks are not looked for: the interpreter itself has them.
  LD_PRELOAD="$("$compiler" -print-file-name=libasan.so) $("$compiler" -print-file-name=libubsan.so)" \
  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$build/src:$packages" "$python" -S "$@"
}
sanitized -c "
from importlib.util import find_spec
from fastmax.backends import native
found = find_spec('fastmax.backends.native._kernels').origin
assert found == '$build/src/fastmax/backends/native/_kernels.so', found
print('sanitized kernels:', native.describe())"
# Every level and form, dropout, decays, steps of decoding; prepared calls and states; one test measures memory, which the
# sanitizers change. Kernels that Triton's interpreter or a GPU runs are not built here.
sanitized -m pytest -p no:cacheprovider tests/backends tests/test_eager_path.py tests/state -k "not chunked and not triton" \
  --deselect tests/backends/test_native.py::test_scratch_memory_is_small "$@"
# Random calls, prepared ones and decoding, on sizes that no test has.
sanitized -m tools.fuzz --backend native --seed 4000000 --cases 400 --minutes 30
