// The orientation of an image by its metadata, by the rules of Pillow 13 (Image.getexif and
// ImageOps.exif_transpose): that of its EXIF data, or of its XMP where those have none. The same
// rules are in fastload/exif.py, tested equal. Nothing outside of the data is read, whatever is in
// them. May throw std::bad_alloc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// In metadata that are not read here: other decoders can tell.
constexpr int kOrientationUnknown = 0;

// Each: 1 to 8, as in EXIF; 1 also where there is no orientation, or one that makes no sense.

// Of a JPEG, of which everything down to the first scan is needed.
int jpeg_orientation(const uint8_t* data, size_t size);
// Of a whole PNG. kOrientationUnknown: it may be in compressed text, or in text of hexadecimal
// digits.
int png_orientation(const uint8_t* data, size_t size);
// Of a whole WebP.
int webp_orientation(const uint8_t* data, size_t size);

}  // namespace fastload
