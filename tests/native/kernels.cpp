// Compares the inner loops of all instruction sets of this processor, without Python and libjpeg:
// for processors that are only emulated (scripts/test_arm.sh).
//
//     kernels JPEG...
//
// Decodes boxes of each file, resamples noise, and reverses PNG filters with every instruction set.
// All must agree; the hash of what they agree on is printed, to be compared between machines.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "jpeg/baseline.hpp"
#include "kernels.hpp"

namespace {

using namespace fastload;

struct Hash {
    uint64_t value = 0xcbf29ce484222325u;

    void add(const uint8_t* bytes, size_t count) {
        for (size_t i = 0; i < count; ++i) value = (value ^ bytes[i]) * 0x100000001b3u;
    }
};

class HashedRows final : public RowSink {
  public:
    HashedRows(Hash& hash, int width) : hash_(hash), width_(width) {}

    void take(const uint8_t* const* rows, int count) override {
        for (int y = 0; y < count; ++y) hash_.add(rows[y], 4 * static_cast<size_t>(width_));
    }
    void restart() override {}

  private:
    Hash& hash_;
    int width_;
};

// Boxes of all sizes and alignments, at every scale, of some by points, too. A file that is not for
// our own decoder counts with its reason.
void decode(const Kernels& kernels, const std::vector<uint8_t>& file, Hash& hash) {
    jpeg::BaselineDecoder decoder(*kernels.jpeg);
    std::mt19937 random(1);
    auto below = [&](int limit) {
        return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    for (int i = 0; i < 24; ++i) {
        const int shift = i % 4;
        const bool is_whole = i < 4;
        auto reason = static_cast<uint8_t>(decoder.open(file.data(), file.size(), 1 << 28));
        const int round_up = (1 << shift) - 1;
        const Size size = {(decoder.frame().height + round_up) >> shift,
                           (decoder.frame().width + round_up) >> shift};
        if (reason == 0 && decoder.reduce(shift)) {
            Box box = {0, 0, size.height, size.width};
            if (!is_whole) {
                box = {below(size.height), below(size.width), 0, 0};
                box.height = 1 + below(size.height - box.top);
                box.width = 1 + below(size.width - box.left);
            }
            HashedRows rows(hash, box.width);
            jpeg::Points points;
            points.step = 1 + i;
            const bool notes = i % 3 == 0 && decoder.frame().one_scan;
            reason = static_cast<uint8_t>(
                decoder.read(box, i / 4 % 2 == 0, rows, notes ? &points : nullptr));
            if (reason == 0 && !points.points.empty())
                reason = decoder.read_by_points(points, box, rows) ? 0 : 255;
        }
        hash.add(&reason, 1);
    }
}

void resample(const Kernels& kernels, Hash& hash) {
    std::mt19937 random(2);
    auto below = [&](int limit) {
        return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    for (int i = 0; i < 300; ++i) {
        constexpr int kPixels = 200, kRows = 70;
        std::vector<uint8_t> source(kRows * (4 * kPixels + kRowSlack));
        for (uint8_t& byte : source) byte = static_cast<uint8_t>(random());
        const uint8_t* rows[kRows];
        for (int y = 0; y < kRows; ++y) rows[y] = source.data() + y * (4 * kPixels + kRowSlack);

        const int widths[] = {2, 4, 8, 12, 20};
        const int width = widths[below(5)], outputs = 1 + below(60), count = 1 + below(9);
        std::vector<int32_t> first(static_cast<size_t>(outputs));
        std::vector<int16_t> weights(static_cast<size_t>(outputs * width));
        for (int32_t& at : first) at = below(kPixels - width);
        // As large as weights of 14 fractional bits are, now and then of 15.
        for (int16_t& weight : weights)
            weight = static_cast<int16_t>(below(i % 10 == 0 ? 32768 : 16384) / width - 300);
        std::vector<int32_t> split(static_cast<size_t>(outputs) * 2 *
                                   static_cast<size_t>((width + 3) / 4));
        const bool is_split =
            kernels.split != nullptr && kernels.split(weights.data(), outputs, width, split.data());
        const size_t stride = 3 * static_cast<size_t>(outputs) + kRowSlack;
        std::vector<uint8_t> middle(stride * static_cast<size_t>(count));
        std::vector<uint8_t*> out;
        for (int y = 0; y < count; ++y)
            out.push_back(middle.data() + stride * static_cast<size_t>(y));
        kernels.horizontal({rows, out.data(), count, outputs, first.data(), weights.data(), width,
                            14, is_split ? split.data() : nullptr});
        for (int y = 0; y < count; ++y)
            hash.add(out[static_cast<size_t>(y)], 3 * static_cast<size_t>(outputs));

        const int taps = 1 + below(kRows), bytes = 1 + below(4 * kPixels);
        std::vector<int16_t> column(static_cast<size_t>(taps));
        for (int16_t& weight : column) weight = static_cast<int16_t>(below(32768) / taps - 100);
        std::vector<uint8_t> row(static_cast<size_t>(bytes));
        kernels.vertical(
            {source.data(), 4 * kPixels + kRowSlack, column.data(), taps, 14, row.data(), bytes});
        hash.add(row.data(), row.size());

        const int pixels = 1 + below(kPixels);
        std::vector<uint8_t> mirrored(3 * static_cast<size_t>(pixels));
        kernels.mirror(source.data(), mirrored.data(), pixels);
        hash.add(mirrored.data(), mirrored.size());
    }
}

// Rows of PNGs out of every filter, at every width.
void unfilter(const Kernels& kernels, Hash& hash) {
    std::mt19937 random(3);
    constexpr size_t kMost = 70, kRow = 8 * kMost + png::kTail;
    std::vector<uint8_t> rows(3 * kRow), made(2 * kRow), again(2 * kRow);
    for (int i = 0; i < 2000; ++i) {
        for (uint8_t& byte : rows) byte = static_cast<uint8_t>(random());
        const auto filter = static_cast<png::Filter>(i % png::kFilters);
        const int count = 1 + i % static_cast<int>(kMost), bytes = 3 + i % 2;
        const uint8_t* above = rows.data() + 2 * kRow;
        const auto add = [&](const uint8_t* pixels) {
            for (int x = 0; x < count; ++x) hash.add(pixels + 4 * x, static_cast<size_t>(3));
        };
        kernels.png->unfilter_pixels(filter, bytes, rows.data(), above, made.data(), count);
        add(made.data());
        const uint8_t* const raw[] = {rows.data(), rows.data() + kRow};
        uint8_t* const out[] = {again.data(), again.data() + kRow};
        kernels.png->paeth_pair(bytes, raw, above, out, count);
        add(out[0]);
        add(out[1]);
        constexpr int kBytes[] = {1, 2, 3, 4, 6, 8};
        const int step = kBytes[i % 6];
        kernels.png->unfilter_bytes(filter, step, rows.data(), above, step * count);
        hash.add(rows.data(), static_cast<size_t>(step * count));
    }
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::vector<uint8_t>> files;
    for (int i = 1; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    uint64_t agreed = 0;
    std::string names;
    for (const char* name : {"plain", "sse4.1", "avx2", "avx512", "neon"}) {
        const Kernels* kernels = find_kernels(name);
        if (kernels == nullptr) continue;
        Hash hash;
        for (const auto& file : files) decode(*kernels, file, hash);
        resample(*kernels, hash);
        unfilter(*kernels, hash);
        if (!names.empty() && hash.value != agreed) {
            std::fprintf(stderr, "%s differs from %s\n", name, names.c_str());
            return 1;
        }
        agreed = hash.value;
        names += names.empty() ? name : std::string(" ") + name;
    }
    std::fprintf(stderr, "%zu files, agreed: %s\n", files.size(), names.c_str());
    std::printf("%016llx\n", static_cast<unsigned long long>(agreed));
    return 0;
}
