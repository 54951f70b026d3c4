// Where decoded rows go.
#pragma once

#include <cstdint>

namespace fastload {

// Takes rows of 4-byte pixels (RGBX), top to bottom; kRowSlack bytes behind each row are readable.
class RowSink {
  public:
    virtual void take(const uint8_t* const* rows, int count) = 0;
    // Forgets what it was given: the first row comes again.
    virtual void restart() = 0;

  protected:
    ~RowSink() = default;
};

}  // namespace fastload
