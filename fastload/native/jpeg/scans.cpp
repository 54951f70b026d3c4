#include "jpeg/scans.hpp"

#include <algorithm>
#include <cstring>

#include "image.hpp"
#include "jpeg/bits.inl.hpp"

namespace fastload::jpeg {
namespace {

// Up to so many bytes are kept between images. Larger memory is allocated by calloc: the system
// provides only the pages that are written to, so that a small file which claims to be a large
// image takes little memory.
constexpr size_t kKept = size_t{8} << 20;
// Coefficients have at most 10 bits and a sign, DC coefficients 11 and a sign: shifted left by so
// many bits they still fit 16 bits.
constexpr int kMostLow = 5, kMostDcLow = 4;

}  // namespace

bool Scans::allocate(const Frame& frame) {
    const int columns = divide_up(frame.width, 8 * frame.h),
              rows = divide_up(frame.height, 8 * frame.v);
    size_t blocks[kMostComponents] = {}, all = 0;
    for (int i = 0; i < frame.components; ++i) {
        const Component& component = frame.component[i];
        Plane& plane = planes_[i];
        plane.stride = columns * component.h;
        plane.width = divide_up(divide_up(frame.width * component.h, frame.h), 8);
        plane.height = divide_up(divide_up(frame.height * component.v, frame.v), 8);
        plane.quantisers = {};
        std::fill(plane.bits, plane.bits + 64, int8_t{-1});
        blocks[i] = static_cast<size_t>(plane.stride) * static_cast<size_t>(rows * component.v);
        all += blocks[i];
    }
    const size_t bytes = all * (64 * sizeof(int16_t) + sizeof(uint64_t)) + 64;
    if (bytes <= kKept && bytes <= capacity_) {
        std::memset(memory_.get(), 0, bytes);
    } else {
        memory_.reset();
        capacity_ = 0;
        memory_.reset(std::calloc(bytes, 1));
        if (memory_ == nullptr) return false;
        capacity_ = bytes;
    }
    auto* known = static_cast<uint64_t*>(memory_.get());
    auto* coefficients = reinterpret_cast<int16_t*>(known + all);
    for (int i = 0; i < frame.components; ++i) {
        planes_[i].known = known;
        planes_[i].coefficients = coefficients;
        known += blocks[i];
        coefficients += 64 * blocks[i];
    }
    return true;
}

void Scans::release() {
    if (capacity_ <= kKept) return;
    memory_.reset();
    capacity_ = 0;
}

// Whether a scan may come next: each coefficient first with its upper bits, then one bit in each
// scan. Notes what it sends.
bool Scans::check(const Frame& frame, const Scan& scan) {
    if (scan.last > 63 || scan.first > scan.last) return false;
    const bool dc = scan.first == 0;
    if (frame.progressive) {
        if (dc ? scan.last != 0 || scan.low > kMostDcLow
               : scan.components != 1 || scan.low > kMostLow)
            return false;
        if (scan.high != 0 && scan.high != scan.low + 1) return false;
    } else if (scan.first != 0 || scan.last != 63 || scan.high != 0 || scan.low != 0) {
        return false;
    }
    for (int i = 0; i < scan.components; ++i) {
        Plane& plane = planes_[scan.component[i]];
        if (!dc && plane.bits[0] < 0) return false;
        for (int k = scan.first; k <= scan.last; ++k) {
            if (plane.bits[k] < 0 ? scan.high != 0 : plane.bits[k] != scan.high || scan.high == 0)
                return false;
            plane.bits[k] = static_cast<int8_t>(scan.low);
        }
    }
    return true;
}

// Makes the lookup tables of a scan, and notes the quantisation tables of components that begin
// with it.
bool Scans::prepare(const Frame& frame, const Scan& scan) {
    for (int i = 0; i < scan.components; ++i) {
        const int component = scan.component[i];
        Plane& plane = planes_[component];
        if (plane.quantisers.values == nullptr) {
            const int slot = frame.component[component].quantisers;
            if (slot > 3 || frame.quantisers[slot].values == nullptr) return false;
            plane.quantisers = frame.quantisers[slot];
        }
        if (scan.first == 0 && scan.high == 0) {
            const uint8_t* codes = frame.dc_codes[scan.dc_table[i]];
            if (codes == nullptr || !make_code(codes, true, dc_codes_[i])) return false;
            fill_partial(dc_codes_[i], dc_entries_[i]);
        }
        if (scan.last > 0) {
            const uint8_t* codes = frame.ac_codes[scan.ac_table[i]];
            if (codes == nullptr || !make_code(codes, false, ac_codes_[i])) return false;
            fill_partial(ac_codes_[i], ac_entries_[i]);
        }
    }
    return true;
}

// Calls `decode(state, i, block, known, count)` for all blocks of a scan in the order of the file:
// `count` blocks side by side of component number i of the scan, the first of which has its
// coefficients at `block` and its mask of nonzero ones at `known`. `decode` returns false if the
// data are bad; so does this.
template <typename Function>
bool Scans::for_each_part(const Frame& frame, const Scan& scan, Function decode) {
    struct Part {
        int16_t* coefficients;
        uint64_t* known;
        size_t stride;
        int h, v;
    };
    Part parts[kMostComponents];
    const bool alone = scan.components == 1;
    int blocks = 0;
    for (int i = 0; i < scan.components; ++i) {
        const Plane& plane = planes_[scan.component[i]];
        const Component& component = frame.component[scan.component[i]];
        parts[i] = {plane.coefficients, plane.known, static_cast<size_t>(plane.stride),
                    alone ? 1 : component.h, alone ? 1 : component.v};
        blocks += parts[i].h * parts[i].v;
    }
    // In a scan of one component a MCU is one block, and blocks without pixels are left out.
    const Plane& only = planes_[scan.component[0]];
    const int columns = alone ? only.width : divide_up(frame.width, 8 * frame.h);
    const int rows = alone ? only.height : divide_up(frame.height, 8 * frame.v);
    const int at_once = kMostBlocks / blocks;
    int64_t until_restart = frame.restart_interval;
    int number = 0;
    end_run_ = 0;
    std::fill(dc_, dc_ + kMostComponents, 0);
    for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns;) {
            if (frame.restart_interval != 0 && until_restart == 0) {
                if (!source_.restart(number)) return false;
                number = (number + 1) & 7;
                until_restart = frame.restart_interval;
                end_run_ = 0;
                std::fill(dc_, dc_ + kMostComponents, 0);
            }
            source_.reserve();
            int count = std::min(columns - column, at_once);
            if (frame.restart_interval != 0)
                count = static_cast<int>(std::min<int64_t>(count, until_restart));
            BitState state = begin(source_.state);
            // The blocks side by side: of one component all in a row; of several those of a MCU.
            const int mcus = alone ? 1 : count, side_by_side = alone ? count : 1;
            for (int mcu = column; mcu < column + mcus; ++mcu) {
                for (int i = 0; i < scan.components; ++i) {
                    const Part& part = parts[i];
                    for (int y = 0; y < part.v; ++y) {
                        const size_t at = static_cast<size_t>(row * part.v + y) * part.stride +
                                          static_cast<size_t>(mcu * part.h);
                        if (!decode(state, i, part.coefficients + 64 * at, part.known + at,
                                    part.h * side_by_side))
                            return false;
                    }
                }
            }
            column += count;
            state.count &= 63;
            source_.state = state;
            if (source_.overdrawn()) return false;
            until_restart -= count;
        }
    }
    return true;
}

// Decodes the entropy-coded data of a scan.
bool Scans::decode(const Frame& frame, const Scan& scan) {
    const int low = scan.low;
    const auto next_dc = [&](BitState& state, int i, int16_t* block) -> bool {
        const Entry found = next_symbol(state, dc_entries_[i], dc_codes_[i]);
        if (found == 0) return false;
        dc_[i] += value_of(found);
        if (dc_[i] < -(1 << 11) || dc_[i] >= 1 << 11)
            return false;  // more than 8-bit samples can have
        block[0] = static_cast<int16_t>(dc_[i] * (1 << low));
        return true;
    };
    if (!frame.progressive) {
        return for_each_part(
            frame, scan,
            [&](BitState& state, int i, int16_t* block, uint64_t* known, int count) -> bool {
                for (int k = 0; k < count; ++k, block += 64, ++known) {
                    if (!next_dc(state, i, block)) return false;
                    BandTask task = {state, ac_entries_[i], &ac_codes_[i], 1, 63,
                                     0,     block,          known,         1, 0};
                    // Only progressive files may end several blocks at once.
                    if (!kernels_.first_of_band(task) || task.end_run != 0) return false;
                    state = task.bits;
                }
                return true;
            });
    }
    if (scan.first == 0 && scan.high == 0) {
        return for_each_part(frame, scan,
                             [&](BitState& state, int i, int16_t* block, uint64_t*, int count) {
                                 bool good = true;
                                 for (int k = 0; good && k < count; ++k)
                                     good = next_dc(state, i, block + 64 * k);
                                 return good;
                             });
    }
    if (scan.first == 0) {
        return for_each_part(
            frame, scan, [&](BitState& state, int, int16_t* block, uint64_t*, int count) {
                for (int k = 0; k < count; ++k, block += 64) {
                    refill(state);
                    *block =
                        static_cast<int16_t>(*block | static_cast<int16_t>(take(state, 1) << low));
                }
                return true;
            });
    }
    const auto decode_band = scan.high == 0 ? kernels_.first_of_band : kernels_.next_of_band;
    return for_each_part(
        frame, scan, [&](BitState& state, int, int16_t* block, uint64_t* known, int count) {
            BandTask task = {state, ac_entries_[0], &ac_codes_[0], scan.first, scan.last,
                             low,   block,          known,         count,      end_run_};
            const bool good = decode_band(task);
            state = task.bits;
            end_run_ = task.end_run;
            return good;
        });
}

Reason Scans::read(const uint8_t* data, size_t size, const Frame& frame, int64_t most) {
    if (!allocate(frame)) return Reason::unusual;
    Frame tables = frame;
    size_t at = frame.scan_header;
    for (int64_t count = 1;; ++count) {
        Scan scan;
        if (count > most || !read_scan(data, size, tables, at, scan)) return Reason::unusual;
        if (!check(tables, scan) || !prepare(tables, scan)) return Reason::unusual;
        source_.start(data + at, data + size);
        if (!decode(tables, scan)) return Reason::unusual;
        const uint8_t* const marker = source_.marker();
        if (marker == nullptr) return Reason::unusual;
        at = static_cast<size_t>(marker - data);
        const Next next = read_next(data, size, tables, at);
        if (next == Next::unusual) return Reason::unusual;
        if (next == Next::end) break;
    }
    for (int i = 0; i < frame.components; ++i) {
        // libjpeg estimates low frequencies that were not sent from the blocks around, and each of
        // its versions does so in another way.
        const int8_t* const bits = planes_[i].bits;
        if (std::any_of(bits, bits + 10, [](int8_t lowest) { return lowest != 0; }))
            return Reason::unusual;
    }
    return Reason::none;
}

}  // namespace fastload::jpeg
