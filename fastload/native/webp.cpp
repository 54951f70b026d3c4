#include <algorithm>
#include <cstring>
#include <vector>

#include <webp/decode.h>

#include "decoder.hpp"

namespace fastload {
namespace {

// Columns and rows decoded on each side of a box: smooth upsampling of chroma reads one sample, two
// pixels, beside it. Even, as one chroma sample belongs to 2 x 2 pixels.
constexpr int kMargin = 4;
// Bytes of memory kept between images.
constexpr size_t kMostKept = size_t{32} << 20;

Outcome refused(const char* why) { return {Status::damaged, why}; }

// A number of four bytes, the lowest first.
size_t u32(const uint8_t* at) {
    return size_t{at[0]} | size_t{at[1]} << 8 | size_t{at[2]} << 16 | size_t{at[3]} << 24;
}

// Decodes with libwebp, which reads the data down to the last row of the box.
class WebpDecoder final : public ImageDecoder {
  public:
    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override {
        WebPBitstreamFeatures features;
        if (WebPGetFeatures(data, size, &features) != VP8_STATUS_OK)
            return refused("a WebP that is cut off or odd");
        const size_t container = u32(data + 4);  // bytes after the first eight
        if (std::memcmp(data, "RIFF", 4) != 0 || container > size - 8 || container < 4)
            return refused("a WebP that is cut off");
        if (features.has_animation) return refused("a WebP with moving images");
        data_ = data;
        size_ = 8 + container;
        header_ = {{features.height, features.width}, features.has_alpha ? 4 : 3, false};
        return limits.check(header_.size);
    }

    Outcome read(const Box& box, bool whole, RowSink& sink) override {
        WebPDecoderConfig config;
        if (!WebPInitDecoderConfig(&config))
            return refused("another version of libwebp than it was built with");
        const Size size = header_.size;
        const int left = std::max(box.left - kMargin, 0) & ~1,
                  top = std::max(box.top - kMargin, 0) & ~1;
        const int right = std::min(box.left + box.width + kMargin, size.width);
        const int bottom =
            whole ? size.height : std::min(box.top + box.height + kMargin, size.height);
        WebPDecoderOptions& options = config.options;
        options.use_cropping = 1;
        options.crop_left = left;
        options.crop_top = top;
        options.crop_width = right - left;
        options.crop_height = bottom - top;
        const size_t stride = size_t{4} * static_cast<size_t>(right - left);
        const size_t bytes = stride * static_cast<size_t>(bottom - top);
        if (stride > INT32_MAX) return refused("a WebP of too many columns");
        grow(pixels_, bytes + kRowSlack);
        config.output.colorspace = MODE_RGBA;
        config.output.is_external_memory = 1;
        config.output.u.RGBA = {pixels_.data(), static_cast<int>(stride), bytes};
        const VP8StatusCode found = WebPDecode(data_, size_, &config);
        for (int y = 0; found == VP8_STATUS_OK && y < box.height; ++y) {
            const uint8_t* row = pixels_.data() + stride * static_cast<size_t>(box.top - top + y) +
                                 4 * (box.left - left);
            sink.take(&row, 1);
        }
        release_large(pixels_, kMostKept);
        return found == VP8_STATUS_OK ? Outcome{} : refused("a WebP with damaged data");
    }

  private:
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    std::vector<uint8_t> pixels_;
};

}  // namespace

std::unique_ptr<ImageDecoder> make_webp_decoder() { return std::make_unique<WebpDecoder>(); }

}  // namespace fastload
