// Fuzz target: decoding by points of the seek index, of any bytes as a JPEG and any points. The
// first eight bytes choose box, step and what is done to the points; the ninth says how many bytes
// after the tenth say how points are changed; the rest is the file. What must hold, apart from no
// finding of the sanitizers:
//
// - points that a decode has noted give the same pixels, at any scale;
// - noting points changes neither pixels nor outcome;
// - changed points are refused, or all inner loops give the same pixels;
// - an index file that was changed gives no points, or those that were put into it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "choices.hpp"
#include "jpeg/baseline.hpp"
#include "kernels.hpp"
#include "seek_index.hpp"

namespace {

using namespace fastload;
using jpeg::Reason;

constexpr size_t kChoices = 8;

class Collector final : public RowSink {
  public:
    explicit Collector(int width) : width_(width) {}
    void take(const uint8_t* const* rows, int count) override {
        for (int i = 0; i < count; ++i) pixels.insert(pixels.end(), rows[i], rows[i] + 4 * width_);
    }
    void restart() override { pixels.clear(); }

    std::vector<uint8_t> pixels;

  private:
    int width_;
};

// Moves some of the points, a little or far.
void change(jpeg::Points& points, int64_t bits, Choices choices) {
    while (!choices.ended()) {
        const int what = choices.byte();
        const auto at = static_cast<size_t>(choices.byte()) * points.points.size() / 256;
        jpeg::Point& point = points.points[at];
        const int by = choices.byte() - 128;
        switch (what % 5) {
            case 0: point.position += by; break;
            case 1: point.position = bits * (by + 128) / 200 + choices.byte(); break;
            case 2: point.position = by * (int64_t{1} << choices.byte() % 55); break;
            case 3: point.dc[what / 5 % 3] = static_cast<int16_t>(by * 257); break;
            default: point = points.points[points.points.size() - 1 - at]; break;
        }
    }
}

// Writes an index with these points, changes some bytes of the file, and looks up the points again.
void attack_file(const std::vector<uint8_t>& packed, Choices choices) {
    constexpr uint64_t kHash = 0x123456789abcdef, kSize = 4321;
    const std::string other = "/tmp/fastload-fuzz-" + std::to_string(::getpid());
    ::unlink(other.c_str());
    {
        SeekIndex index(other, 1, 1 << 20);
        index.add(kHash, kSize, packed);
        index.flush();
        std::vector<uint8_t> found;
        require(index.find(kHash, kSize, found) && found == packed, "a record is not found");
        require(!index.find(kHash, kSize + 1, found), "a record of another file is found");
    }
    const int file = ::open(other.c_str(), O_RDWR | O_CLOEXEC);
    const auto size = static_cast<size_t>(::lseek(file, 0, SEEK_END));
    const size_t parts[4] = {0, 64, 64 + 8 * (1024 + 64), size};
    while (!choices.ended()) {
        const int what = choices.byte(), part = what % 3;
        const size_t length = parts[part + 1] - parts[part];
        // The slot of this hash, in the table.
        const size_t spread = static_cast<size_t>(choices.byte()) * 256 + choices.byte();
        const size_t at =
            part == 1 ? 64 + 8 * (kHash & 1023) + spread % 512 : parts[part] + spread % length;
        const auto value = static_cast<uint8_t>(choices.byte());
        require(::pwrite(file, &value, 1, static_cast<off_t>(at)) == 1, "cannot write");
        if (what >= 250) require(::ftruncate(file, static_cast<off_t>(at)) == 0, "cannot cut");
    }
    ::close(file);
    try {
        SeekIndex index(other, 1, 1 << 20);
        std::vector<uint8_t> found;
        if (index.find(kHash, kSize, found)) require(found == packed, "another record is found");
        (void)index.contents();
        index.drop(kHash, kSize);
        index.add(kHash, kSize, packed);
        index.flush();
        if (index.find(kHash, kSize, found)) require(found == packed, "another record is found");
    } catch (const std::exception&) {
    }
    ::unlink(other.c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static jpeg::BaselineDecoder best(*find_kernels("auto")->jpeg), plain(*kPlainKernels.jpeg);
    if (size < kChoices + 2) return 0;
    const size_t changes = std::min<size_t>(data[8] % 64, size - kChoices - 2);
    const Choices choices(data + kChoices + 2, changes);
    // Heap memory of exactly this size, so that a byte read beyond it is seen.
    const std::vector<uint8_t> file(data + kChoices + 2 + changes, data + size);
    if (data[7] >= 250)
        attack_file(std::vector<uint8_t>(data, data + std::min<size_t>(size, 5000)), choices);

    if (best.open(file.data(), file.size(), 1 << 20) != Reason::none || !best.frame().one_scan)
        return 0;
    const jpeg::Frame frame = best.frame();
    if (int64_t{frame.width} * frame.height > 1 << 16) return 0;
    const int shift = data[5] % 5 == 0 ? data[5] >> 4 & 3 : 0;
    (void)plain.open(file.data(), file.size(), 1 << 20);
    const bool reduced = shift > 0 && best.reduce(shift) && plain.reduce(shift);
    const int height = reduced ? (frame.height - 1) / (1 << shift) + 1 : frame.height;
    const int width = reduced ? (frame.width - 1) / (1 << shift) + 1 : frame.width;
    const int top = data[0] * height / 256, left = data[1] * width / 256;
    const Box box = {top, left, 1 + data[2] * (height - top - 1) / 255,
                     1 + data[3] * (width - left - 1) / 255};
    const bool whole = (data[6] & 1) != 0;

    Collector today(box.width), noting(box.width);
    const Reason verdict = best.read(box, whole, today);
    jpeg::Points points;
    points.step = 1 + data[4] % 40;
    const Reason noted = best.read(box, whole, noting, &points);
    require(verdict == noted, "noting points changes the verdict");
    // Of a file that is refused, some rows were given, which are forgotten: without points, two
    // rows of MCUs at a time where there are restart markers.
    if (verdict != Reason::none) return 0;
    require(today.pixels == noting.pixels, "noting points changes the pixels");
    if (points.points.empty()) {
        // Damage below the box. Points of any kind may be in an index that somebody made.
        points.points.resize(static_cast<size_t>(points.in_row(mcu_columns(frame))) *
                             static_cast<size_t>(mcu_rows(frame)));
    } else {
        std::vector<uint8_t> packed;
        pack(frame, points, packed);
        jpeg::Points again;
        require(unpack(frame, packed.data(), packed.size(), again) && again.step == points.step &&
                    again.points == points.points,
                "points are not what was packed");
        Collector sought(box.width);
        require(best.read_by_points(points, box, sought), "noted points are refused");
        require(today.pixels == sought.pixels, "the pixels differ from those without points");
        for (Choices at = choices; !at.ended();) {
            const auto place = static_cast<size_t>(at.byte()) * packed.size() / 256;
            packed[place] = static_cast<uint8_t>(at.byte());
        }
        if (unpack(frame, packed.data(), packed.size(), again)) {
            Collector some(box.width);
            (void)best.read_by_points(again, box, some);
        }
    }
    change(points, int64_t{8} * static_cast<int64_t>(file.size()), choices);
    Collector ours(box.width), theirs(box.width);
    const bool good = best.read_by_points(points, box, ours);
    require(good == plain.read_by_points(points, box, theirs), "the inner loops differ in verdict");
    require(!good || ours.pixels == theirs.pixels, "the inner loops differ in pixels");
    return 0;
}
