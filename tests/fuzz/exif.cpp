// Fuzz target: the metadata that say how an image is turned. The input is a JPEG, a PNG and a WebP.
// What must hold, apart from no finding of the sanitizers:
//
// - the answer is one of those there are, and the same every time;
// - a JPEG is turned alike by all of it and by what comes before its first scan.
#include "exif.hpp"

#include <algorithm>
#include <cstring>

#include "choices.hpp"

using namespace fastload;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // Heap memory of exactly this size, so that a byte read beyond is seen.
    const Pixels file(data, data + size);
    const int jpeg = jpeg_orientation(file.data(), size),
              webp = webp_orientation(file.data(), size), png = png_orientation(file.data(), size);
    require(jpeg >= 1 && jpeg <= 8 && webp >= 1 && webp <= 8, "no orientation");
    require(png == kOrientationUnknown || (png >= 1 && png <= 8), "no orientation of a PNG");
    require(png == png_orientation(file.data(), size), "another orientation of the same PNG");

    // Up to an end of the image that is put in the middle, and with what was there after it.
    Pixels ended(file.begin(), file.begin() + static_cast<ptrdiff_t>(size / 2));
    ended.insert(ended.end(), {0xff, 0xd9});
    Pixels more = ended;
    more.insert(more.end(), file.begin() + static_cast<ptrdiff_t>(size / 2), file.end());
    const auto segments = [](const Pixels& jpeg) {  // bytes down to the first scan, or to the end
        size_t at = 2;
        while (at + 4 <= jpeg.size() && jpeg[at] == 0xff && jpeg[at + 1] >= 0xe0 &&
               jpeg[at + 1] != 0xff) {
            at += 2 + std::max<size_t>(2, size_t{jpeg[at + 2]} << 8 | jpeg[at + 3]);
        }
        return at;
    };
    if (segments(ended) == ended.size() - 2)
        require(jpeg_orientation(ended.data(), ended.size()) ==
                    jpeg_orientation(more.data(), more.size()),
                "what comes after a JPEG turns it");
    return 0;
}
