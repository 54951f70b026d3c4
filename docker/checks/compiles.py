"""Compiles a module of Python's in C as Triton does before its first launch: with a compiler,
Python's headers, and a folder to keep it in. Needs no GPU."""

import os

from triton.runtime import build

SOURCE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&module); }
"""

made = build.compile_module_from_src(SOURCE, "compiled")
print(f"user {os.getuid()}: {made.__file__}")
assert made.__file__.startswith(os.environ["TRITON_CACHE_DIR"])
