"""Whether Pillow is Pillow-SIMD, nothing else owns its files, and torchvision works with it. Runs
inside the image."""

import time
from importlib import metadata

import PIL
import torch
import torchvision
from PIL import Image, features
from torchvision.transforms import _functional_pil, functional

assert ".post" in PIL.__version__, f"Pillow {PIL.__version__} is not Pillow-SIMD"
owners = [
    found.metadata["Name"].lower()
    for found in metadata.distributions()
    if any(str(file) == "PIL/__init__.py" for file in found.files or ())
]
assert owners == ["pillow-simd"], f"PIL belongs to {owners}"
assert features.check_feature("libjpeg_turbo"), "it was built with another libjpeg"
codecs = [name for name in ("jpg", "zlib", "webp", "libtiff") if features.check(name)]
assert len(codecs) == 4, f"codecs: only {codecs}"
assert _functional_pil.Image is Image, "torchvision has another PIL"

image = Image.effect_noise((4000, 3000), 64).convert("RGB")
pixels, again = (
    functional.pil_to_tensor(functional.resize(image, [256, 256])),
    functional.pil_to_tensor(image),
)
tensors = functional.resize(again, [256, 256], antialias=True)
assert pixels.shape == tensors.shape == (3, 256, 256)
apart = (pixels.to(torch.int16) - tensors.to(torch.int16)).abs()
assert apart.max() <= 1, f"it resizes otherwise than torch: up to {apart.max()} levels apart"
started = time.perf_counter()
for _ in range(10):
    functional.resize(image, [256, 256])
milliseconds = (time.perf_counter() - started) * 100
print(
    f"PIL {PIL.__version__} of {owners[0]} in {PIL.__file__}; torchvision "
    f"{torchvision.__version__} uses it"
)
print(f"torchvision resizes 12 megapixels to 256 x 256 in {milliseconds:.1f} ms")
