// The coefficients of a JPEG whose blocks come in several scans: progressive ones, and baseline
// ones with a scan for each component.
//
// All scans must be read before any block is complete, so that coefficients are kept for the whole
// image: 128 bytes a block. Pixels are then made of the box alone. As the baseline decoder, this
// reports no kinds of damage: whatever is unusual goes to libjpeg-turbo.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "jpeg/bits.hpp"
#include "jpeg/frame.hpp"
#include "jpeg/huffman.hpp"
#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

class Scans {
  public:
    explicit Scans(const JpegKernels& kernels) : kernels_(kernels) {}

    // Decodes all scans, and finds the end of the image after them. `frame` is as `read_frame` made
    // it. More than `most` scans are `unusual`.
    Reason read(const uint8_t* data, size_t size, const Frame& frame, int64_t most);

    // Gives back the memory of a large image.
    void release();

    // A block of a component, by its row and column there: 64 coefficients in natural order.
    int16_t* block(int component, int row, int column) const {
        const Plane& plane = planes_[component];
        return plane.coefficients +
               64 * (static_cast<size_t>(row) * static_cast<size_t>(plane.stride) +
                     static_cast<size_t>(column));
    }
    // How many coefficients of it, in zigzag order, there are up to the last that may not be zero;
    // at least 1.
    int reach(int component, int row, int column) const {
        const Plane& plane = planes_[component];
        const uint64_t known =
            plane.known[static_cast<size_t>(row) * static_cast<size_t>(plane.stride) +
                        static_cast<size_t>(column)];
        return 64 - __builtin_clzll(known | 1);
    }
    // A component's table as it was when its first scan began, which is the one that counts.
    const Frame::Quantisers& quantisers(int component) const {
        return planes_[component].quantisers;
    }

  private:
    struct Plane {
        int16_t* coefficients = nullptr;
        uint64_t* known = nullptr;  // of each block: bit k is set where coefficient k, in zigzag
                                    // order, is not zero
        int stride = 0;             // blocks in a row, whole MCUs
        int width = 0,
            height = 0;   // blocks that have pixels: a scan of this component alone has no others
        int8_t bits[64];  // the lowest bit that was sent of each coefficient; -1 for none
        Frame::Quantisers quantisers;
    };
    struct Free {
        void operator()(void* memory) const { std::free(memory); }
    };

    bool allocate(const Frame& frame);
    bool check(const Frame& frame, const Scan& scan);
    bool prepare(const Frame& frame, const Scan& scan);
    bool decode(const Frame& frame, const Scan& scan);
    template <typename Function>
    bool for_each_part(const Frame& frame, const Scan& scan, Function decode);

    const JpegKernels& kernels_;
    Plane planes_[kMostComponents];
    std::unique_ptr<void, Free> memory_;
    size_t capacity_ = 0;
    BitSource source_;
    Code dc_codes_[kMostComponents], ac_codes_[kMostComponents];
    Entry dc_entries_[kMostComponents][kLookups], ac_entries_[kMostComponents][kLookups];
    uint32_t end_run_ = 0;  // blocks that end before their next coefficient, this one included
    int32_t dc_[kMostComponents] = {};
};

}  // namespace fastload::jpeg
