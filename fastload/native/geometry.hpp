// Where the pixels of one output image come from; the C++ side of fastload/geometry/plan.py.
#pragma once

#include <cstdint>

#include "status.hpp"

namespace fastload {

struct Size {
    int height = 0;
    int width = 0;
};

struct Box {
    int top = 0;
    int left = 0;
    int height = 0;
    int width = 0;
};

// Crop to `box`, resample to `size`, cut to `window` (outside of `size` is padding), mirror.
struct Geometry {
    Box box;
    Size size;
    Box window;
    bool mirror = false;       // left-right
    bool upside_down = false;  // top-bottom
};

// Says whether a geometry can be run on an image of this size.
Outcome check_geometry(const Geometry& geometry, Size image);

}  // namespace fastload
