// What became of one sample.
#pragma once

#include <cstdint>
#include <string>

namespace fastload {

// The numbers are part of the Python interface (fastload/native/__init__.py names them): append, never renumber.
enum class Status : int32_t {
    ok = 0,
    damaged = 1,      // libjpeg gave up, or warned that pixels are made up
    not_jpeg = 2,     // another format: the caller's other decoders may know it
    unsupported = 3,  // a JPEG that is valid, but not decoded here (CMYK, YCCK)
    too_large = 4,    // more pixels than allowed; not decoded
    unreadable = 5,   // the system could not open or read the file
    bad_geometry = 6, // the box does not fit the image
    cancelled = 7,
};

struct Outcome {
    Status status = Status::ok;
    std::string message;

    bool ok() const { return status == Status::ok; }
};

}  // namespace fastload
