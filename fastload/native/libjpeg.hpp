// The functions of libjpeg-turbo that the core uses, from a copy of the library that it chooses itself.
//
// Python packages bring a libjpeg of their own under the system's SONAME (torchvision: libjpeg.so.62 or libjpeg.so.8,
// built without jpeg_crop_scanline in some versions). The dynamic linker takes whichever was loaded first for all who
// ask for that name, so an extension that is simply linked may get torchvision's. A library opened by its path is
// always the one meant.
#pragma once

// <jpeglib.h> needs it first.
#include <cstdio>

#include <jpeglib.h>

namespace fastload {

struct LibJpeg {
    decltype(&jpeg_std_error) std_error;
    decltype(&jpeg_CreateDecompress) create_decompress;
    decltype(&jpeg_destroy_decompress) destroy_decompress;
    decltype(&jpeg_abort_decompress) abort_decompress;
    decltype(&jpeg_mem_src) mem_src;
    decltype(&jpeg_read_header) read_header;
    decltype(&jpeg_start_decompress) start_decompress;
    decltype(&jpeg_read_scanlines) read_scanlines;
    decltype(&jpeg_crop_scanline) crop_scanline;
    decltype(&jpeg_skip_scanlines) skip_scanlines;
    decltype(&jpeg_input_complete) input_complete;
};

// Loads the library at the first call; throws std::runtime_error if it is not there or too old.
const LibJpeg& libjpeg();

}  // namespace fastload
