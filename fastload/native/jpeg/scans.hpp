// Decodes the coefficients of JPEGs in several scans: progressive ones, and baseline ones with a
// scan for each component.
//
// A block is complete only when all scans are read. So the coefficients of the whole image are
// kept, 136 bytes a block; pixels are then made only of the box. Like the baseline decoder, this
// does not say what is wrong with a file: libjpeg-turbo decodes all that is unusual.
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

// For one thread at a time. `kernels` must live as long as the object.
class Scans {
  public:
    explicit Scans(const JpegKernels& kernels) : kernels_(kernels) {}

    // Decodes all scans up to the end-of-image marker. `frame`: from `read_frame`, of the same
    // data. More than `most` scans are `unusual`, as is anything that libjpeg-turbo should judge,
    // and an image for whose coefficients there is no memory.
    Reason read(const uint8_t* data, size_t size, const Frame& frame, int64_t most);

    // Frees the memory of a large image (more than 8 MB).
    void release();

    // The 64 coefficients of a block in natural order, after `read`. `row`, `column`: of blocks of
    // this component.
    int16_t* block(int component, int row, int column) const {
        const Plane& plane = planes_[component];
        return plane.coefficients +
               64 * (static_cast<size_t>(row) * static_cast<size_t>(plane.stride) +
                     static_cast<size_t>(column));
    }
    // As KeptBlock::reach of this block: how many coefficients, in zigzag order, there are up to
    // the last one that is not zero; at least 1.
    int reach(int component, int row, int column) const {
        const Plane& plane = planes_[component];
        const uint64_t known =
            plane.known[static_cast<size_t>(row) * static_cast<size_t>(plane.stride) +
                        static_cast<size_t>(column)];
        return 64 - __builtin_clzll(known | 1);
    }
    // The quantisation table of a component, as it was at its first scan: as libjpeg uses it.
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
    uint32_t end_run_ =
        0;  // of progressive scans: how many blocks from here on have no more symbols
    int32_t dc_[kMostComponents] = {};  // the last DC coefficient of each component
};

}  // namespace fastload::jpeg
