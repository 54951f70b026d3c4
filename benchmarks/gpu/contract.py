"""The contract suite on the device, in a process of its own, and then what only photographs and a GPU can tell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu import checks
from benchmarks.gpu.found import Found
from benchmarks.gpu.native import ROOT
from benchmarks.gpu.setting import Setting

__all__ = ["read_junit", "run"]

_SUITE_SHARE = 0.7
"""Of the part's time."""
_PROCESSES = 6
"""Each has a context on the GPU, which takes half a gigabyte."""


def run(setting: Setting, found: Found) -> None:
    try:
        found.save("suite", _suite(setting, found.left * _SUITE_SHARE))
    except Exception as error:  # the checks do not depend on it
        found.save("suite", {"status": "failed", "note": f"{type(error).__name__}: {error}"})
    checks.run(setting, found)


def _suite(setting: Setting, seconds: float) -> dict[str, Any]:
    if find_spec("pytest") is None:
        return {"status": "unavailable", "note": "pytest is not installed: pip install pytest pytest-timeout"}
    report = Path(setting.out) / "contract.xml"
    report.unlink(missing_ok=True)
    # The project's own settings make errors of warnings, which here may be those of another version of torch.
    command = [sys.executable, "-m", "pytest", "tests/test_contract.py", "-q", "-W", "default", "--tb=short"]
    command += ["-p", "no:cacheprovider", f"--junitxml={report}"]
    if find_spec("pytest_timeout") is None:
        command += ["-c", os.devnull, f"--rootdir={ROOT}"]
    if find_spec("xdist") is not None and setting.where().type == "cuda":
        command += ["-n", str(_PROCESSES)]
    if setting.contract:
        command += ["-k", setting.contract]
    environment = {**os.environ, "FASTLOAD_TEST_DEVICE": setting.device, "PYTHONPATH": _python_path()}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    note = ""
    try:
        process.wait(max(seconds, 1))
    except subprocess.TimeoutExpired:
        note = f"interrupted after {seconds:.0f} s"
        process.send_signal(signal.SIGINT)  # pytest then writes its report of what it has done
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not report.exists():
        return {"status": "failed", "note": note or f"pytest ended with {process.returncode} and left no report"}
    found = read_junit(report)
    report.unlink()
    if note:
        return {**found, "status": "partial", "note": note}
    return {**found, "status": "right" if not found["failures"] and found["passed"] else "WRONG"}


def read_junit(report: Path) -> dict[str, Any]:
    """Counts, in all and by contestant, and what failed."""
    counts: Counter[str] = Counter()
    contestants: dict[str, Counter[str]] = {}
    failures = []
    skipped: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
                said = (child.get("message") or "").strip().splitlines()
                failures.append({"test": case.get("name"), "message": said[0] if said else ""})
            elif child.tag == "skipped":
                outcome = "skipped"
                skipped[child.get("message") or ""] += 1
        counts[outcome] += 1
        parameters = re.search(r"\[(.*)\]", case.get("name") or "")
        if parameters is not None:
            contestants.setdefault(_contestant(parameters.group(1)), Counter())[outcome] += 1
    return {
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "reasons": dict(skipped),
        "contestants": {name: dict(found) for name, found in sorted(contestants.items())},
        "failures": failures,
    }


def _contestant(parameters: str) -> str:
    """Its name, which stands before or behind the test's other parameters."""
    from tests.backends import CONTESTANTS

    names = sorted((c.name for c in CONTESTANTS), key=len, reverse=True)
    return next((name for name in names if re.search(rf"(^|-){re.escape(name)}($|-)", parameters)), parameters)


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
