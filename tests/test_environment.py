"""A bad environment, in clear words: what the doctor and the image's entry point say of drivers,
memory and volumes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fastload.cli import environment
from fastload.cli.environment import (
    Driver,
    cache_folder,
    installed_driver,
    kernel_driver,
    nvidia,
    shared_memory,
)
from tests.waiting import LIMIT

ABSENT = Driver(None, reason="NVML Shared Library Not Found")

# -- The NVIDIA driver -----------------------------------------------------------------------------


def test_a_container_without_the_nvidia_runtime_on_a_host_with_a_driver() -> None:
    (finding,) = nvidia(ABSENT, "580.65.06", (13, 2), "all")
    assert finding.status == "warning"
    assert "580.65.06 runs on this machine, and cannot be loaded here" in finding.value
    assert "docker run --gpus all" in finding.advice
    assert "nvidia-ctk runtime configure --runtime=docker" in finding.advice


def test_an_image_for_gpus_on_a_machine_without_any() -> None:
    (finding,) = nvidia(ABSENT, None, (13, 2), "all")
    assert finding.status == "warning"
    assert "none in this container (NVIDIA_VISIBLE_DEVICES=all)" in finding.value
    assert "docker run -e NVIDIA_VISIBLE_DEVICES=void" in finding.advice


@pytest.mark.parametrize("wanted", ["all", "0,1", None])
def test_a_driver_too_old_for_the_cuda_of_torch(wanted: str | None) -> None:
    (finding,) = nvidia(Driver("535.183.01", (12, 2)), "535.183.01", (13, 2), wanted)
    assert finding.status == "warning"
    assert (
        finding.value == "535.183.01 is too old: it runs CUDA up to 12.2, torch was built for 13.2"
    )
    assert "Install driver 580 or newer on the host, or take a torch for CUDA 12 " in finding.advice
    assert "--build-arg TORCH_INDEX_URL" in finding.advice


def test_a_driver_too_old_for_a_cuda_that_is_newer_than_this_code() -> None:
    (finding,) = nvidia(Driver("580.65.06", (13, 0)), None, (14, 0), "all")
    assert "Install a newer driver on the host" in finding.advice


@pytest.mark.parametrize(
    ("driver", "kernel", "built", "wanted"),
    [
        pytest.param(
            Driver("580.65.06", (13, 0)),
            "580.65.06",
            (13, 2),
            "all",
            id="older minor version of CUDA",
        ),
        pytest.param(Driver("610.10", (14, 1)), "610.10", (13, 2), "all", id="newer driver"),
        pytest.param(ABSENT, None, None, "all", id="torch without CUDA"),
        pytest.param(ABSENT, "580.65.06", (13, 2), "void", id="no GPU wanted"),
        pytest.param(ABSENT, None, (13, 2), None, id="an ordinary machine without GPU"),
    ],
)
def test_nothing_is_said_of_a_driver_in_order(
    driver: Driver, kernel: str | None, built: tuple[int, int] | None, wanted: str | None
) -> None:
    assert not list(nvidia(driver, kernel, built, wanted))


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  "
        "(archlinux-builder@)",
    ],
)
def test_the_version_of_the_kernels_driver(line: str, tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text(f"{line}\nGCC version:  gcc version 13.2.1 20230801 (GCC)\n")
    assert kernel_driver(path) == "550.54.15"
    assert kernel_driver(tmp_path / "absent") is None


def test_what_the_driver_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: b"550.54.15")
    monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion", lambda: 12040)
    assert installed_driver() == Driver("550.54.15", (12, 4))

    def fails() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr(pynvml, "nvmlInit", fails)
    assert installed_driver().version is None
    assert "version mismatch" in installed_driver().reason.lower()


def test_the_cuda_of_torch_is_known_without_loading_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = environment.torch_cuda()
    assert (f"{numbers[0]}.{numbers[1]}" if numbers else None) == torch.version.cuda
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('loaded')")
    (tmp_path / "torch/version.py").write_text("cuda = '12.6'")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch")
    assert environment.torch_cuda() == (12, 6)
    (tmp_path / "torch/version.py").write_text("cuda = None")
    assert environment.torch_cuda() is None


# -- Shared memory ---------------------------------------------------------------------------------


def test_the_shared_memory_that_docker_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = SimpleNamespace(f_blocks=16384, f_frsize=4096, f_bavail=16384)
    monkeypatch.setattr(os, "statvfs", lambda path: docker)
    (finding,) = shared_memory()
    assert finding.value == "64 MiB free of 64 MiB, Docker's default"
    assert finding.status == "warning"
    assert "docker run --shm-size=8g" in finding.advice


def test_enough_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os,
        "statvfs",
        lambda path: SimpleNamespace(f_blocks=8 << 18, f_frsize=4096, f_bavail=6 << 18),
    )
    (finding,) = shared_memory()
    assert (finding.status, finding.value, finding.advice) == ("ok", "6.0 GiB free of 8.0 GiB", "")


def test_no_shared_memory(tmp_path: Path) -> None:
    (finding,) = shared_memory(str(tmp_path / "shm"))
    assert finding.status == "warning"
    assert finding.value.startswith("absent")


# -- The cache folder ------------------------------------------------------------------------------


def test_a_cache_folder_that_can_be_written_and_is_not_there_yet(tmp_path: Path) -> None:
    (finding,) = cache_folder(tmp_path / "cache" / "fastload")
    assert finding.status == "ok"
    assert finding.value.startswith(f"{tmp_path}/cache/fastload, ")
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that this process may not write to. (The tests may run as root, which may.)"""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    return tmp_path


def test_a_cache_volume_mounted_read_only(locked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY, f_bavail=0, f_frsize=4096)
    )
    (finding,) = cache_folder(locked / "fastload")
    assert finding.status == "warning"
    assert finding.value == f"{locked}/fastload: mounted read-only"
    assert f"without `:ro` (docker run -v fastload-cache:{locked})" in finding.advice
    assert "XDG_CACHE_HOME=" in finding.advice


def test_a_cache_volume_that_belongs_to_another_user(
    locked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1001)
    (finding,) = cache_folder(locked / "fastload")
    assert finding.status == "warning"
    assert finding.value == f"{locked}/fastload: user 1000:1001 may not write to {locked}"
    assert "sudo chown -R 1000:1001" in finding.advice
    assert '--user "$(id -u):$(id -g)"' in finding.advice


# -- The entry point and the doctor ----------------------------------------------------------------


def test_the_entry_point_says_what_is_wrong_and_does_not_load_torch(tmp_path: Path) -> None:
    """As the image runs it, with an NVIDIA driver that is far too old for any torch, and no torch
    that could load."""
    (tmp_path / "pynvml.py").write_text(
        "class NVMLError(Exception): pass\n"
        "def nvmlInit(): pass\n"
        "def nvmlShutdown(): pass\n"
        "def nvmlSystemGetDriverVersion(): return '470.256.02'\n"
        "def nvmlSystemGetCudaDriverVersion(): return 11040\n"
    )
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise AssertionError('loaded')")
    (tmp_path / "torch/version.py").write_text("cuda = '13.2'")
    root = Path(environment.__file__).parents[2]
    variables = os.environ | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    variables.pop("NVIDIA_VISIBLE_DEVICES", None)
    command = [sys.executable, "-m", "fastload.cli.environment"]
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout == ""
    assert re.search(
        r"^fastload: NVIDIA driver: 470\.256\.02 is too old: .*13\.2$", done.stderr, re.MULTILINE
    )
    assert re.search(r"^    Install driver 580 or newer on the host", done.stderr, re.MULTILINE)
    assert "cache folder" not in done.stderr


def test_the_doctor_says_it_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastload.cli.doctor import hardware

    monkeypatch.setattr(environment, "installed_driver", lambda: Driver("470.256.02", (11, 4)))
    monkeypatch.setattr(environment, "torch_cuda", lambda: (13, 2))
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "all")
    found = {finding.name: finding for finding in hardware()}
    assert found["NVIDIA driver"].status == "warning"
    assert {"/dev/shm", "cache folder", "torch.cuda"} <= found.keys()


def test_the_package_of_dali_that_fits_driver_and_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastload.cli import doctor
    from fastload.cli.environment import Driver

    assert doctor.dali_package((13, 0), (13, 2)) == "dali-cuda130"
    assert doctor.dali_package((13, 0), (12, 8)) == "dali"
    assert doctor.dali_package((12, 4), (13, 0)) == "dali"
    assert doctor.dali_package((0, 0), None) == "dali"
    installed = {"nvidia-dali-cuda120"}
    monkeypatch.setattr(
        doctor, "installed_distribution", lambda name: name if name in installed else None
    )
    monkeypatch.setattr(doctor, "installed_driver", lambda: Driver("590.1", (13, 1)))
    monkeypatch.setattr(doctor, "torch_cuda", lambda: (13, 2))
    (found,) = doctor.dali()
    assert found.value == "nvidia-dali-cuda120"
    assert "[dali-cuda130]" in found.advice
    installed.add("nvidia-dali-cuda130")
    (found,) = doctor.dali()
    assert (found.status, "the same modules" in found.advice) == ("warning", True)
    installed.remove("nvidia-dali-cuda120")
    assert not list(doctor.dali())
