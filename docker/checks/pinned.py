"""Whether every package has the version of the constraints file, and none is without one. Runs
inside the image."""

import re
from importlib import metadata
from pathlib import Path


def plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


lines = (
    line.partition("#")[0].strip()
    for line in Path("/etc/fastload/constraints.txt").read_text().splitlines()
)
pinned = {plain(name): version for name, version in (line.split("==") for line in lines if line)}
# A build of torch for one CUDA calls itself 2.15.0+cu132: that is version 2.15.0.
found = {
    plain(dist.metadata["Name"]): dist.version.partition("+")[0]
    for dist in metadata.distributions()
}
del found["torch-fastload"]
loose = {name: version for name, version in found.items() if pinned.get(name) != version}
assert not loose, f"not in constraints.txt with this version: {loose}"
print(f"all {len(found)} packages have the versions of constraints.txt")
