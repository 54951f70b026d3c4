// Fuzz target: any bytes through header, box, region decode, resampling. The first eight bytes choose box, size and
// options; the rest is the file. What must hold, besides that memory is in order:
//
// - the portable inner loops and the best that the processor has make the same pixels;
// - with libjpeg-turbo in place of our own decoder, the verdict is the same;
// - where our own decoder took the image, its pixels are those of libjpeg-turbo's full decode, cropped.
#include <cstddef>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "decode_job.hpp"
#include "worker.hpp"

namespace {

using namespace fastload;

// A box somewhere in the image, or, for some inputs, partly outside of it.
class FuzzedGeometry final : public GeometrySource {
  public:
    explicit FuzzedGeometry(const uint8_t* bytes) : bytes_(bytes) {}

    Outcome resolve(int, Size image, Geometry& geometry) const override {
        const int top = bytes_[0] * image.height / 256, left = bytes_[1] * image.width / 256;
        const int outside = bytes_[6] == 255 ? 1 : 0;
        geometry.box = {top, left, 1 + bytes_[2] * (image.height - top - 1) / 255 + outside,
                        1 + bytes_[3] * (image.width - left - 1) / 255 + outside};
        geometry.size = {1 + bytes_[4] % 48, 1 + bytes_[4] / 6};
        if (bytes_[5] & 1) geometry.size = {geometry.box.height, geometry.box.width};
        geometry.window = {bytes_[6] % 32 - 12, bytes_[6] / 8 - 12, kOut.height, kOut.width};
        geometry.mirror = (bytes_[5] & 2) != 0;
        geometry.upside_down = (bytes_[5] & 4) != 0;
        return {};
    }

    static constexpr Size kOut = {33, 21};

  private:
    const uint8_t* bytes_;
};

constexpr size_t kChoices = 8;

// The rows it is given, from a column on.
class Collector final : public RowSink {
  public:
    Collector(int left, int width) : left_(left), width_(width) {}

    void take(const uint8_t* const* rows, int count) override {
        for (int i = 0; i < count; ++i) pixels.insert(pixels.end(), rows[i] + 4 * left_, rows[i] + 4 * (left_ + width_));
    }
    void restart() override { pixels.clear(); }

    std::vector<uint8_t> pixels;

  private:
    int left_, width_;
};

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// Pixels of the box by our own decoder and by a full decode of all rows down to its last. `file` is one that our own took.
void compare_pixels(Worker& own, DecoderCounts& counts, Worker& other, const std::vector<uint8_t>& file, const uint8_t* choices) {
    require(own.decoder.open(file.data(), file.size(), {}).ok(), "our own decoder no longer opens the file");
    const Size size = own.decoder.header().size;
    Geometry geometry;
    (void)FuzzedGeometry(choices).resolve(0, size, geometry);
    const Box& box = geometry.box;
    if (!check_geometry(geometry, size).ok()) return own.decoder.close();
    const int64_t before = counts.of[0].load();
    Collector region(0, box.width), full(box.left, box.width);
    const bool good = own.decoder.read(box, false, region).ok();
    if (!good || counts.of[0].load() == before) return;
    require(other.decoder.open(file.data(), file.size(), {}).ok() &&
                other.decoder.read({0, 0, box.top + box.height, size.width}, false, full).ok(),
            "libjpeg-turbo does not decode what our own decoder took");
    const size_t above = size_t{4} * static_cast<size_t>(box.top) * static_cast<size_t>(box.width);
    require(full.pixels.size() == above + region.pixels.size() &&
                std::equal(region.pixels.begin(), region.pixels.end(), full.pixels.begin() + static_cast<ptrdiff_t>(above)),
            "the pixels differ from libjpeg-turbo's");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // One of each, kept like a thread's: what one input leaves behind must not hurt the next.
    static DecoderCounts counts;
    static Worker workers[] = {Worker(kPlainKernels), Worker(*find_kernels("auto"), &counts), Worker(kPlainKernels)};
    workers[2].decoder.use_libjpeg(true);
    if (size < kChoices) return 0;
    DecodeOptions options;
    options.resample.interpolation = {static_cast<Filter>(data[7] & 3), (data[7] & 4) != 0};
    options.resample.padding = static_cast<Padding>(data[7] >> 3 & 3);
    options.exif_orientation = (data[7] & 32) != 0;
    options.whole = (data[7] & 64) != 0;
    options.limits.max_pixels = 1 << 14;

    // Heap memory of exactly this size, so that a byte read or written beyond is seen.
    const size_t bytes = size_t{3} * FuzzedGeometry::kOut.height * FuzzedGeometry::kOut.width;
    const std::vector<uint8_t> file(data + kChoices, data + size);
    Outcome outcomes[3];
    std::vector<uint8_t> outputs[3];
    const int64_t before = counts.of[0].load();
    for (int i = 0; i < 3; ++i) {
        outputs[i].assign(bytes, 0);
        outcomes[i] = decode_image(workers[i], file.data(), file.size(), FuzzedGeometry(data), 0, options,
                                   FuzzedGeometry::kOut, outputs[i].data());
        workers[i].decoder.close();
    }
    require(outcomes[0].status == outcomes[1].status && outputs[0] == outputs[1], "the inner loops differ");
    if (outcomes[0].status != outcomes[2].status) {
        std::fprintf(stderr, "ours: \"%s\", libjpeg-turbo: \"%s\"\n", outcomes[0].message.c_str(), outcomes[2].message.c_str());
        std::abort();
    }
    if (counts.of[0].load() != before && outcomes[1].ok()) compare_pixels(workers[1], counts, workers[2], file, data);
    return 0;
}
