// Fuzz target: the plan of a crop for a GPU, and the kernels that follow it, run on the host, of
// any bytes as a JPEG and any points. The input is that of `seek.cpp`. What must hold, apart from
// no finding of the sanitizers:
//
// - points that a decode has noted are taken, and give the pixels of that decode;
// - by changed points, or of a file that was changed after its points were noted, the crop is
//   refused, or has the pixels that the CPU makes by these points, or that the CPU refuses;
// - by data that are resident on the device the crop has the same pixels, as far as both take it;
// - what is resized has the pixels that the CPU's resize makes of the crop;
// - all coefficients are zero again afterwards.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "choices.hpp"
#include "cuda/host.hpp"
#include "device_plan.hpp"
#include "jpeg/baseline.hpp"
#include "kernels.hpp"

namespace {

using namespace fastload;
using device::Left;
using jpeg::Reason;

constexpr size_t kChoices = 8;
constexpr uint64_t kMemory = 64 << 20;

class Collector final : public RowSink {
  public:
    explicit Collector(int width) : width_(width) {}
    void take(const uint8_t* const* rows, int count) override {
        for (int i = 0; i < count; ++i) {
            for (int x = 0; x < width_; ++x)
                pixels.insert(pixels.end(), rows[i] + 4 * x, rows[i] + 4 * x + 3);
        }
    }
    void restart() override { pixels.clear(); }

    Pixels pixels;

  private:
    int width_;
};

// A resize of any box of a size, by a window that cuts and pads.
struct Resizing {
    Geometry geometry;
    ResampleOptions options;

    Resizing(const Box& box, int one, int other) {
        const int height = 1 + one % 64, width = 1 + other % 64;
        geometry.box = box;
        geometry.size = {height, width};
        geometry.window = {height / 2 - 8, width / 3 - 4, 13, 11};
        geometry.mirror = geometry.mirror_first = one % 2 != 0;
        geometry.upside_down = other % 2 != 0;
        options.filter = static_cast<Filter>(one / 64);
        options.padding = static_cast<Padding>(other / 64);
        options.antialias = one % 3 != 0;
    }
    Size out() const { return {geometry.window.height, geometry.window.width}; }

    // What the CPU makes of the pixels of a box.
    Pixels by_cpu(const Pixels& pixels, const Box& box) const {
        Resampler resampler(*find_kernels("plain"));
        resampler.begin(geometry, options);
        const Box& needed = resampler.needed();
        require(needed.height == box.height && needed.width == box.width, "another part");
        Pixels row(size_t{4} * static_cast<size_t>(box.width) + kRowSlack);
        for (int y = 0; y < box.height; ++y) {
            for (int x = 0; x < 3 * box.width; ++x)
                row[static_cast<size_t>(x / 3 * 4 + x % 3)] =
                    pixels[static_cast<size_t>(y) * 3 * static_cast<size_t>(box.width) +
                           static_cast<size_t>(x)];
            const uint8_t* const line = row.data();
            resampler.take(&line, 1);
        }
        Pixels made(size_t{3} * static_cast<size_t>(out().height) *
                    static_cast<size_t>(out().width));
        resampler.finish(made.data());
        return made;
    }
};

// The pixels of a box, twice in a batch, and once from data that are resident. Empty: it is
// refused, `left` says where. `noted`: the points are those of a decode that read to the end of the
// image.
Pixels by_device(const jpeg::Frame& frame, const Pixels& file, const jpeg::Points& points,
                 const Box& box, Left& left, bool noted = false,
                 const Resizing* resizing = nullptr) {
    device::BatchPlan batch(kMemory);
    device::CropPlan crop;
    left = device::plan_crop(frame, file.data(), file.size(), points, box, batch.memory(), crop);
    if (left != Left::none) return {};
    if (resizing != nullptr)
        device::add_resize(device::ResizeTaps(resizing->geometry, resizing->options), crop);
    batch.add(crop);
    batch.add(crop, 1);
    // The third: from data that are resident, in memory without slack.
    device::ResidentImage resident;
    Pixels grown;
    const Left holds =
        device::prepare_resident(frame, file.data(), file.size(), points, resident, grown);
    const std::unique_ptr<uint8_t[]> bytes(new uint8_t[grown.size()]);
    std::copy(grown.begin(), grown.end(), bytes.get());
    if (holds == Left::none) {
        require(device::plan_resident(frame, resident, reinterpret_cast<uint64_t>(bytes.get()), box,
                                      batch.memory(), crop) == Left::none,
                "what is resident is not planned");
        if (resizing != nullptr)
            device::add_resize(device::ResizeTaps(resizing->geometry, resizing->options), crop);
        batch.add(crop, 2);
    }
    batch.finish();
    const Size out = resizing == nullptr ? Size{} : resizing->out();
    const device::HostRun run = device::run_on_host(batch, 1, out);
    require(run.zeros_again, "coefficients are left");
    require(run.failures[0] == run.failures[1], "the verdict depends on the place in the batch");
    const auto size = static_cast<ptrdiff_t>(run.pixels.size() / batch.crops());
    if (run.failures[0] != 0) return {};
    require(!noted || (holds == Left::none && run.failures[2] == 0),
            "noted points are not resident");
    const bool both = holds == Left::none && run.failures[2] == 0;
    for (ptrdiff_t i = 1; i < (both ? 3 : 2); ++i)
        require(std::equal(run.pixels.begin(), run.pixels.begin() + size,
                           run.pixels.begin() + i * size),
                "the pixels depend on the place in the batch, or on where the data are");
    const Pixels pixels(run.pixels.begin(), run.pixels.begin() + size);
    if (resizing != nullptr) {
        const Pixels made = resizing->by_cpu(pixels, box);
        for (ptrdiff_t i = 0; i < (both ? 3 : 2); ++i)
            require(std::equal(made.begin(), made.end(),
                               run.resized.begin() + i * static_cast<ptrdiff_t>(made.size())),
                    "the resize differs from the CPU's");
    }
    return pixels;
}

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

// Whether CPU and device agree, as far as both take the crop.
void compare(jpeg::BaselineDecoder& decoder, const Pixels& file, const jpeg::Points& points,
             const Box& box) {
    Left left;
    const Pixels made = by_device(decoder.frame(), file, points, box, left);
    Collector wanted(box.width);
    if (!made.empty() && decoder.read_by_points(points, box, wanted))
        require(made == wanted.pixels, "the pixels differ from the CPU's by these points");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static jpeg::BaselineDecoder decoder(*find_kernels("auto")->jpeg);
    if (size < kChoices + 2) return 0;
    const size_t changes = std::min<size_t>(data[8] % 64, size - kChoices - 2);
    const Choices choices(data + kChoices + 2, changes);
    // Heap memory of exactly this size, so that a byte read beyond it is seen.
    const Pixels file(data + kChoices + 2 + changes, data + size);
    if (decoder.open(file.data(), file.size(), 1 << 20) != Reason::none ||
        !decoder.frame().one_scan)
        return 0;
    const jpeg::Frame frame = decoder.frame();
    const int height = frame.height, width = frame.width;
    if (int64_t{height} * width > 1 << 16) return 0;
    const int top = data[0] * height / 256, left = data[1] * width / 256;
    const Box box = {top, left, 1 + data[2] * (height - top - 1) / 255,
                     1 + data[3] * (width - left - 1) / 255};
    jpeg::Points points;
    points.step = 1 + data[4] % 40;
    Collector today(box.width);
    const Reason verdict = decoder.read(box, (data[6] & 1) != 0, today, &points);
    if (verdict == Reason::none && !points.points.empty()) {
        Left left_to_cpu;
        const Pixels made = by_device(frame, file, points, box, left_to_cpu, true);
        require(left_to_cpu == Left::none, "noted points are not planned");
        require(!made.empty(), "noted points are refused");
        require(made == today.pixels, "the pixels differ from those without points");
        const Resizing resizing(box, data[5], data[7]);
        const Box needed = device::ResizeTaps(resizing.geometry, resizing.options).needed;
        (void)by_device(frame, file, points, needed, left_to_cpu, true, &resizing);
    } else {
        // Damage. Points of any kind may be in an index that somebody made.
        points.points.resize(static_cast<size_t>(points.in_row(mcu_columns(frame))) *
                             static_cast<size_t>(mcu_rows(frame)));
    }
    Pixels changed = file;
    for (Choices at = choices; !at.ended();) {
        const size_t place =
            frame.scan + static_cast<size_t>(at.word()) % (file.size() - frame.scan + 1);
        const auto value = static_cast<uint8_t>(at.byte());
        if (place < changed.size()) changed[place] = value;
    }
    if (changed != file && decoder.open(changed.data(), changed.size(), 1 << 20) == Reason::none)
        compare(decoder, changed, points, box);
    (void)decoder.open(file.data(), file.size(), 1 << 20);
    change(points, int64_t{8} * static_cast<int64_t>(file.size()), choices);
    compare(decoder, file, points, box);
    return 0;
}
