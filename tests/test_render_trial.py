"""Whether kernels run on a GPU: with a stand-in for NVIDIA's driver, so that Triton compiles what
it compiles on a GPU, and on machines where it cannot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload.render import fused
from tests.triton_driver import MACHINES

pytestmark = [
    pytest.mark.whole,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, whose driver answers"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc, as Triton does"),
]
pytest.importorskip(
    "triton.backends.nvidia", reason="needs Triton, which comes with torch for CUDA"
)

CAUSES = {
    "no compiler": ("Failed to find C compiler", "apt-get install gcc python3-dev"),
    "no headers": ("there is no Python.h in", "apt-get install gcc python3-dev"),
    "no cache": ("Not a directory", "set TRITON_CACHE_DIR=/folder"),
    "a cache that is not written to": ("File exists", "set TRITON_CACHE_DIR=/folder"),
    "Pascal": ("compute capability 6.1", "Triton needs 7.0 or newer"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By machine, what there is to say of it; Triton is not in its interpreter there."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TRITON_INTERPRET", "CC", fused.SWITCH)
    }
    command = [sys.executable, "-m", "tests.triton_driver", str(tmp_path_factory.mktemp("driver"))]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[1],
    )
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.keys() == MACHINES.keys()
    return found


def test_one_kernel_is_launched_for_a_device_where_all_is_well(answers: dict[str, Any]) -> None:
    found = answers["whole"]
    assert found["why_not"] == ["", ""]
    assert (found["launches"], found["launches, of a batch too"]) == (1, 2)
    assert found["logged"] == []
    without = "Triton's. Not in CUDA C: cuda-bindings is not installed. To have it: pip install "
    (line,) = [line for line in found["explain"].splitlines() if line.startswith("kernels ")]
    assert line.removeprefix("kernels     ").startswith(without)
    assert found["doctor"][:2] == ["ok", "kernels on GPU 3"]
    assert found["doctor"][2].startswith(without)


def test_kernels_in_cuda_c_come_first_and_need_no_compiler(answers: dict[str, Any]) -> None:
    found = answers["NVRTC"]
    assert found["why_not"] == ["", ""]
    assert found["launches, of a batch too"] == 0, "none of Triton's"
    assert found["made"] == pytest.approx([0.2]), "by the native core in the GPU's place"
    assert found["logged"] == []
    assert "kernels     in CUDA C, compiled by NVRTC" in found["explain"].splitlines()
    assert found["doctor"] == ["ok", "kernels on GPU 3", "in CUDA C, compiled by NVRTC"]


def test_where_the_driver_refuses_them_triton_has_its_turn(answers: dict[str, Any]) -> None:
    found = answers["an NVRTC that is too new"]
    assert found["launches, of a batch too"] == 2
    assert found["logged"] == []
    why = "Not in CUDA C: the driver of cuda:3 says CUDA_ERROR_UNSUPPORTED_PTX_VERSION."
    assert found["doctor"] == ["ok", "kernels on GPU 3", f"Triton's. {why}"]


@pytest.mark.parametrize("machine", CAUSES)
def test_where_kernels_do_not_run_the_operations_of_torch_make_the_batch(
    answers: dict[str, Any], machine: str
) -> None:
    found, (cause, remedy) = answers[machine], CAUSES[machine]
    (why,) = set(found["why_not"])
    assert cause in why
    assert remedy in why
    assert found["launches, of a batch too"] == 0
    assert found["made"] == pytest.approx([0.2])
    (warning,) = found["logged"]
    assert warning.startswith("cuda:3: torch's operations make the batches")
    assert why in warning
    said = f"none, torch's operations do their work: {why}"
    assert f"kernels     {said}" in found["explain"].splitlines()
    assert found["doctor"][0] == "warning"
    assert found["doctor"][2] == said


def test_kernels_that_are_switched_off_are_not_tried(answers: dict[str, Any]) -> None:
    found = answers["switched off"]
    assert found["launches, of a batch too"] == 0
    assert found["made"] == pytest.approx([0.2])
    assert found["logged"] == []
    assert found["doctor"][0] == "ok"
    assert "FASTLOAD_FUSED=0" in found["doctor"][2]
