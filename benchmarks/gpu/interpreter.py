"""Triton's interpreter on a CPU, mended where versions before 3.9 do not compute as a GPU does.

The interpreter stands in for a GPU: a kernel's operations are numpy's, one program after the other.
It is for tests, and shows that kernels give the right bits; nothing of fastload needs it.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

AnyArray = npt.NDArray[Any]


def mend_interpreter() -> None:
    """Replace what is wrong in the interpreter of the Triton here; nothing in one that computes
    `fma` itself (3.9). May be called again.

    - `fma` rounds the product, and then the sum; a GPU rounds once.
    - The end of a `range` is an array of one element, which numpy from 2.4 on does not convert to
      an `int`.
    """
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    if hasattr(interpreter._interpreter, "fma_fp32") or hasattr(interpreter, "mended"):
        return
    handle, patch = interpreter.TensorHandle, interpreter._patch_lang_tensor

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        numbers = x.data, y.data, z.data
        single = z.data.dtype == np.float32
        return handle(fma(*numbers) if single else x.data * y.data + z.data, z.dtype.scalar)

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter.InterpreterBuilder.create_fma = create_fma
    interpreter._patch_lang_tensor = patch_lang_tensor
    interpreter.mended = True


def fma(x: AnyArray, y: AnyArray, z: AnyArray) -> AnyArray:
    """x * y + z of float32, rounded once.

    The product of two 24-bit numbers is exact in float64. Their sum with a third is rounded there
    to an odd last bit wherever it is not exact ("round to odd", Boldo and Melquiond, "Emulation of
    FMA and correctly rounded sums", IEEE Transactions on Computers 57(4), 2008), which rounding to
    float32 then cannot take for a half.
    """
    product = x.astype(np.float64) * y.astype(np.float64)
    other = np.broadcast_to(z, np.broadcast_shapes(product.shape, z.shape)).astype(np.float64)
    with np.errstate(invalid="ignore"):
        total = product + other
        # What rounding has taken away (Knuth's TwoSum); not a number where the sum is not finite.
        part = total - product
        lost = (product - (total - part)) + (other - part)
    even = (total.view(np.int64) & 1) == 0
    nearer = np.nextafter(total, np.where(lost > 0, np.inf, -np.inf))
    odd = np.where(even & (lost != 0) & np.isfinite(lost), nearer, total)
    result: AnyArray = odd.astype(np.float32)
    return result
