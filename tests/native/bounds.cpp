// Resamples rows of pixels that end, with their slack, at an unreadable page, with every
// instruction set that runs here: a read beyond ends the program, with or without AddressSanitizer.
//
//     bounds
//
// Exit status 0 if no read went beyond, and all instruction sets gave the same pixels.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "resample.hpp"

namespace {

using namespace fastload;

// Memory that ends where a page begins that nobody may read.
class Guarded {
  public:
    explicit Guarded(size_t size) {
        const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
        const size_t pages = (size + page - 1) / page * page;
        length_ = pages + page;
        void* const made =
            ::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED ||
            ::mprotect(static_cast<uint8_t*>(made) + pages, page, PROT_NONE) != 0)
            std::abort();
        start_ = static_cast<uint8_t*>(made);
        data_ = start_ + pages - size;
    }
    ~Guarded() { ::munmap(start_, length_); }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;

    uint8_t* data() const { return data_; }

  private:
    uint8_t* start_ = nullptr;
    uint8_t* data_ = nullptr;
    size_t length_ = 0;
};

struct Case {
    int width;   // of the image
    int output;  // it is resampled to
    bool bicubic;
};

// Sizes at which weights are 2, 4, 8 and many a position, and the largest that a JPEG can have.
constexpr Case kCases[] = {{7000, 224, false}, {2400, 224, true}, {13000, 24, false},
                           {20000, 32, true},  {65500, 8, true},  {65500, 1, false},
                           {224, 224, false},  {100, 224, true},  {1, 224, true},
                           {2, 3, false},      {3, 2, false},     {5, 1, true},
                           {17, 16, true},     {640, 224, false}, {500, 1000, false}};

bool run(const Case& one, const std::vector<const Kernels*>& all, bool mirror, bool antialias) {
    constexpr int kRows = 5;
    ResampleOptions options;
    options.filter = one.bicubic ? Filter::bicubic : Filter::bilinear;
    options.antialias = antialias;
    Geometry geometry;
    geometry.box = {0, 0, kRows, one.width};
    geometry.size = {3, one.output};
    geometry.window = {0, 0, 3, one.output};
    geometry.mirror = mirror;
    std::vector<uint8_t> before;
    for (const Kernels* kernels : all) {
        Resampler resampler(*kernels);
        resampler.begin(geometry, options);
        const Box needed = resampler.needed();
        const size_t bytes = 4 * static_cast<size_t>(needed.width);
        const Guarded row(bytes + kRowSlack),
            out(static_cast<size_t>(9) * static_cast<size_t>(one.output));
        for (size_t i = 0; i < bytes; ++i) row.data()[i] = static_cast<uint8_t>(i * i / 7);
        for (int y = 0; y < needed.height; ++y) {
            const uint8_t* const given = row.data();
            resampler.take(&given, 1);
        }
        resampler.finish(out.data());
        const std::vector<uint8_t> now(out.data(), out.data() + 9 * one.output);
        if (!before.empty() && now != before) return false;
        before = now;
    }
    // And those that do not run here: all read `width` pixels for a position of the output, and
    // four at least.
    Taps taps;
    taps.build({one.width, one.output, 0, one.output, mirror, 0.0, static_cast<double>(one.width)},
               options);
    taps.keep_inside();
    for (int i = 0; i < taps.count && !taps.copies; ++i) {
        if (taps.first[i] + std::max(taps.width, 4) > taps.inputs() + kRowSlack / 4) return false;
    }
    return true;
}

}  // namespace

int main() {
    std::vector<const Kernels*> all;
    for (const char* name : {"plain", "sse4.1", "avx2", "avx512", "neon"}) {
        if (const Kernels* kernels = find_kernels(name)) all.push_back(kernels);
    }
    for (const Case& one : kCases) {
        for (int i = 0; i < 4; ++i) {
            if (run(one, all, i % 2 == 1, i < 2)) continue;
            std::fprintf(stderr, "%d to %d, %s\n", one.width, one.output,
                         one.bicubic ? "bicubic" : "bilinear");
            return 1;
        }
    }
    std::printf("%zu cases, %zu instruction sets\n", 4 * (sizeof kCases / sizeof kCases[0]),
                all.size());
    return 0;
}
