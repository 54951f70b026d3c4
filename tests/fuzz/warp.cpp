// Fuzz target: images under projective maps. The bytes choose an image of 1 to 256 pixels a side,
// an output, and a matrix of numbers of any kind, infinite and not numbers among them.
//
// Image and output lie in heap memory of exactly the size that they have. What must hold, besides
// that memory is in order: what takes the nearest pixel makes pixels of the image, or the fill;
// a map that moves nothing changes nothing.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "warp.hpp"

namespace {

using namespace fastload;

void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// Numbers from the input; zeros after its end.
class Choices {
  public:
    Choices(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

    int byte() { return next_ == end_ ? 0 : *next_++; }
    double number(double unit) {
        const int kind = byte();
        if (kind >= 16) return unit * (byte() - 128 + byte() / 256.0) / 32.0;
        uint64_t bits = 0;
        for (int i = 0; i < 8; ++i) bits = bits << 8 | static_cast<uint64_t>(byte());
        double any;
        std::memcpy(&any, &bits, sizeof any);
        return any;
    }

  private:
    const uint8_t* next_;
    const uint8_t* end_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Choices choices(data, size);
    const int channels = 1 + choices.byte() % 4;
    const Size in_size = {1 + choices.byte(), 1 + choices.byte()},
               out_size = {1 + choices.byte() % 64, 1 + choices.byte() % 64};
    const size_t pixels = static_cast<size_t>(in_size.height) * static_cast<size_t>(in_size.width);
    const size_t made = static_cast<size_t>(out_size.height) * static_cast<size_t>(out_size.width);
    const std::unique_ptr<uint8_t[]> in(new uint8_t[pixels * static_cast<size_t>(channels)]);
    const std::unique_ptr<uint8_t[]> out(new uint8_t[made * static_cast<size_t>(channels)]);
    uint32_t state = 1 + static_cast<uint32_t>(choices.byte());
    for (size_t i = 0; i < pixels * static_cast<size_t>(channels); ++i) {
        state = state * 1664525u + 1013904223u;
        in[i] = static_cast<uint8_t>(state >> 24);
    }
    WarpOptions options = {(choices.byte() & 1) != 0, (choices.byte() & 1) != 0, {}};
    for (int c = 0; c < channels; ++c) options.fill[c] = static_cast<float>(choices.byte());
    double inverse[9];
    const double units[9] = {1, 1, 64, 1, 1, 64, 0.01, 0.01, 1};
    for (int i = 0; i < 9; ++i) inverse[i] = choices.number(units[i]);
    if (choices.byte() & 1) inverse[6] = inverse[7] = 0.0, inverse[8] = 1.0;
    warp(in.get(), in_size, out.get(), out_size, channels, inverse, options);
    if (!options.bilinear && channels == 1) {
        std::set<uint8_t> values(in.get(), in.get() + pixels);
        values.insert(static_cast<uint8_t>(options.fill[0]));
        for (size_t i = 0; i < made; ++i) require(values.count(out[i]) == 1, "not a pixel");
    }
    const double nothing[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    std::vector<uint8_t> same(pixels * static_cast<size_t>(channels));
    warp(in.get(), in_size, same.data(), in_size, channels, nothing, options);
    require(std::equal(same.begin(), same.end(), in.get()), "moved by nothing");
    return 0;
}
