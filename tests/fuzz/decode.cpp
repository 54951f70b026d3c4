// Fuzz target: any bytes through header, box, region decode, resampling. The first eight bytes choose box, size and
// options; the rest is the file.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // One of each, kept like a thread's: what one input leaves behind must not hurt the next.
    static Worker workers[] = {Worker(kPlainKernels), Worker(*find_kernels("auto"))};
    if (size < kChoices) return 0;
    DecodeOptions options;
    options.resample.interpolation = {static_cast<Filter>(data[7] & 3), (data[7] & 4) != 0};
    options.resample.padding = static_cast<Padding>(data[7] >> 3 & 3);
    options.exif_orientation = (data[7] & 32) != 0;
    options.whole = (data[7] & 64) != 0;
    options.limits.max_pixels = 1 << 18;

    // Heap memory of exactly this size, so that a byte read or written beyond is seen.
    const size_t bytes = size_t{3} * FuzzedGeometry::kOut.height * FuzzedGeometry::kOut.width;
    Outcome outcomes[2];
    std::vector<uint8_t> outputs[2];
    for (int i = 0; i < 2; ++i) {
        const std::vector<uint8_t> file(data + kChoices, data + size);
        outputs[i].assign(bytes, 0);
        outcomes[i] = decode_image(workers[i], file.data(), file.size(), FuzzedGeometry(data), 0, options,
                                   FuzzedGeometry::kOut, outputs[i].data());
        workers[i].decoder.close();
    }
    if (outcomes[0].status != outcomes[1].status || outputs[0] != outputs[1]) std::abort();
    return 0;
}
