// Fuzz target: any bytes as two JPEGs that are decoded beside each other. The first eight bytes
// choose a box in each, the ninth how they are read, the next two where the first ends in the rest.
// What must hold, besides that memory is in order: verdict, pixels and points of each are those
// that it has alone, with the portable loops and with the best.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "choices.hpp"
#include "jpeg/baseline.hpp"
#include "kernels.hpp"

namespace {

using namespace fastload;
using jpeg::BaselineDecoder;
using jpeg::Reason;

class Collector final : public RowSink {
  public:
    void take(const uint8_t* const* rows, int count) override {
        for (int i = 0; i < count; ++i) pixels.insert(pixels.end(), rows[i], rows[i] + 4 * width);
    }
    void restart() override { pixels.clear(); }

    int width = 0;
    Pixels pixels;
};

// An image, how it is read, and what becomes of it.
struct Read {
    Pixels file;
    const uint8_t* corners = nullptr;  // of the box: four bytes
    int flags = 0;  // bit 0: to the end of the image; 1: points are noted; 2 and 3: reduced

    Box box;
    Collector collector;
    jpeg::Points points;
    Reason verdict = Reason::none;

    // False where it is not ours, or too large.
    bool begin(BaselineDecoder& decoder) {
        if (decoder.open(file.data(), file.size(), 1 << 20) != Reason::none) return false;
        const jpeg::Frame& frame = decoder.frame();
        if (int64_t{frame.width} * frame.height > 1 << 16) return false;
        const int shift = flags >> 2 & 3, reduced = decoder.reduce(shift) ? shift : 0;
        const int height = (frame.height - 1) / (1 << reduced) + 1;
        const int width = (frame.width - 1) / (1 << reduced) + 1;
        const int top = corners[0] * height / 256, left = corners[1] * width / 256;
        box = {top, left, 1 + corners[2] * (height - top - 1) / 255,
               1 + corners[3] * (width - left - 1) / 255};
        collector.width = box.width;
        points.step = 1 + corners[1] % 40;
        decoder.begin(box, (flags & 1) != 0, collector, (flags & 2) != 0 ? &points : nullptr);
        return true;
    }

    void finish(BaselineDecoder& decoder) { verdict = decoder.finish(); }

    bool operator==(const Read& other) const {
        // Rows that a refused image has given are forgotten.
        return verdict == other.verdict && points.points == other.points.points &&
               (verdict != Reason::none || collector.pixels == other.collector.pixels);
    }
};

// All of them, two at a time, as a thread does.
void read_beside(BaselineDecoder (&decoders)[2], std::vector<Read>& reads) {
    Read* at_work[2] = {};
    size_t next = 0;
    for (;;) {
        for (int i = 0; i < 2; ++i) {
            if (at_work[i] != nullptr || next == reads.size()) continue;
            at_work[i] = &reads[next++];
            require(at_work[i]->begin(decoders[i]), "an image is refused the second time");
        }
        if (at_work[0] == nullptr && at_work[1] == nullptr) return;
        const bool both = at_work[0] != nullptr && at_work[1] != nullptr;
        if (both) BaselineDecoder::read_on(decoders[0], decoders[1]);
        for (int i = 0; i < 2; ++i) {
            if (at_work[i] == nullptr || (both && decoders[i].has_turn())) continue;
            at_work[i]->finish(decoders[i]);
            at_work[i] = nullptr;
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const jpeg::JpegKernels &best = *find_kernels("auto")->jpeg, &plain = *kPlainKernels.jpeg;
    static BaselineDecoder alone(best),
        by_best[2] = {BaselineDecoder(best), BaselineDecoder(best)},
        by_plain[2] = {BaselineDecoder(plain), BaselineDecoder(plain)};
    constexpr size_t kChoices = 11;
    if (size < kChoices) return 0;
    const uint8_t* const files = data + kChoices;
    const size_t first = (size - kChoices) * static_cast<size_t>(data[9] << 8 | data[10]) / 65536;
    Read a, b;
    // Heap memory of exactly this size, so that a byte read beyond it is seen.
    a.file.assign(files, files + first);
    b.file.assign(files + first, data + size);
    a.corners = data;
    b.corners = data + 4;
    a.flags = data[8] & 15;
    b.flags = data[8] >> 4;
    std::vector<Read> reads, beside, with_plain;
    for (const Read& read : {a, b, b, a}) {
        Read made = read;
        if (!made.begin(alone)) continue;
        made.finish(alone);
        reads.push_back(std::move(made));
        beside.push_back(read);
    }
    with_plain = beside;
    read_beside(by_best, beside);
    require(beside == reads, "an image beside another one is not what it is alone");
    read_beside(by_plain, with_plain);
    require(with_plain == reads, "the inner loops differ");
    return 0;
}
