"""Versions for the report. Runs inside the image."""

import platform
from importlib import metadata

import torch

print(f"  Python     {platform.python_version()}")
print(f"  CUDA       {torch.version.cuda or 'none'}, in the wheels of torch")
packages = (
    "torch torchvision nvidia-dali-cuda120 pillow-simd PyTurboJPEG simplejpeg timm "
    "segmentation-models-pytorch"
)
for package in [*packages.split(), "transformers", "tensorboard"]:
    try:
        print(f"  {package} {metadata.version(package)}")
    except metadata.PackageNotFoundError:
        print(f"  {package}: not there")
