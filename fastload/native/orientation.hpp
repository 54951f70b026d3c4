// Images stored lying or mirrored, as their EXIF orientation says.
#pragma once

#include <vector>

#include "image.hpp"

namespace fastload {

// The EXIF orientation (1 to 8) of a JPEG; 1 where there is none or it makes no sense.
int exif_orientation(const uint8_t* data, size_t size);

// The same of the TIFF structure that EXIF data are.
int tiff_orientation(const uint8_t* data, size_t size);

// Size of the image once it stands upright.
Size upright_size(Size stored, int orientation);

// Where a box of the upright image lies in the stored one.
Box stored_box(const Box& upright, Size stored, int orientation);

// Pixels, as rows and columns of the upright image, that an image made 2^shift times smaller has before its first ones. Sizes
// are rounded up at the stored image's end, which may be where the upright one begins.
Size upright_lead(Size stored, int orientation, int shift);

// Collects the rows of a stored box, and gives them upright to another sink.
class Uprighter final : public RowSink {
  public:
    // `pixels` is memory to reuse.
    Uprighter(Size stored, int orientation, std::vector<uint8_t>& pixels);

    void take(const uint8_t* const* rows, int count) override;
    void restart() override { taken_ = 0; }
    void give(RowSink& sink) const;

  private:
    Size stored_;
    int orientation_;
    std::vector<uint8_t>& pixels_;
    size_t taken_ = 0;
};

}  // namespace fastload
