"""`import fastload` is quick, lazy, and changes nothing that belongs to others."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import textwrap
from importlib import metadata
from typing import Any

import pytest

import fastload
from tests.waiting import LIMIT

OBSERVE = """
import json, logging, multiprocessing, os, random, signal, sys, threading, warnings
import numpy as np
import torch
# torch and torchvision are imported first: what they change is not counted (torch imports sympy,
# which adds a warning filter).
import torchvision.transforms.v2

def state():
    return {
        "torch threads": torch.get_num_threads(),
        "interop threads": torch.get_num_interop_threads(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "sharing strategy": torch.multiprocessing.get_sharing_strategy(),
        "torch RNG": torch.random.get_rng_state().sum().item(),
        "numpy RNG": repr(np.random.get_state()),
        "python RNG": hash(random.getstate()),
        "log handlers": [
            repr(h) for h in logging.getLogger().handlers + logging.getLogger("fastload").handlers
        ],
        "log levels": [logging.getLogger().level, logging.getLogger("fastload").level],
        "warning filters": len(warnings.filters),
        "environment": dict(os.environ),
        "signal handlers": [
            repr(signal.getsignal(s)) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        ],
        "threads": threading.active_count(),
        "default dtype": str(torch.get_default_dtype()),
        "cuda initialised": torch.cuda.is_initialized(),
        "excepthook": repr(sys.excepthook),
    }
"""


def run_python(code: str) -> Any:
    """What the code prints as JSON in a fresh interpreter, where warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_import_alone_loads_no_other_package() -> None:
    loaded = run_python("""
        import json, sys
        before = set(sys.modules)
        import fastload
        dir(fastload), fastload.__version__, fastload.__all__
        print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
    """)
    assert [name for name in loaded if name not in sys.stdlib_module_names] == ["fastload"]


@pytest.mark.whole
def test_importing_every_public_name_changes_nothing_global_and_loads_nothing_optional() -> None:
    before, after, loaded, (monitored, with_monitor), with_network = run_python(
        OBSERVE
        + textwrap.dedent("""
        before = state()
        import fastload
        for name in fastload.__all__:
            getattr(fastload, name)
        after, loaded = state(), sorted(sys.modules)
        sys.modules["pynvml"] = None  # as if it were not installed; torch imports it itself
        fastload.monitor.GpuMonitor()
        monitored = [state(), sorted(sys.modules)]
        fastload.train.TrainConfig
        from fastload.train.config import ModelConfig
        from fastload.train.models import Shape, create_model
        shape = Shape(task="classification", num_classes=2, in_channels=3, image_size=(32, 32))
        create_model(ModelConfig(model="fastload:small"), shape)
        print(json.dumps([before, after, loaded, monitored, sorted(sys.modules)]))
        """)
    )
    assert after == before
    packages = {name.partition(".")[0] for name in loaded}
    assert not packages & {"cv2", "turbojpeg", "typer", "rich"}  # torch imports pynvml itself
    others = ("nvidia.dali", "fastload.cli", "fastload.tools.demo", "fastload.native._core")
    assert not [name for name in loaded if name.startswith(others)]
    assert monitored == before, "by the monitor"
    packages = {name.partition(".")[0] for name in with_monitor}
    assert not packages & {"matplotlib", "tensorboard", "typer", "rich"}
    packages = {name.partition(".")[0] for name in with_network}
    assert not packages & {"timm", "transformers", "segmentation_models_pytorch"}


@pytest.mark.parametrize("name", fastload.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(fastload, name)
    assert name in dir(fastload)
    if name != "__version__":
        module = importlib.import_module(fastload._MODULES[name])
        assert value is getattr(module, name)


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'fastload' has no attribute 'create_lader'"):
        _ = fastload.create_lader


def test_the_version_is_that_of_the_installed_package() -> None:
    try:
        installed = metadata.version("torch-fastload")
    except metadata.PackageNotFoundError:
        pytest.skip("fastload runs from its sources, not installed")
    assert fastload.__version__ == installed


def test_dir_lists_what_is_public_and_nothing_else() -> None:
    import fastload

    assert set(dir(fastload)) == {*fastload.__all__, "monitor", "pipelines", "train"}
