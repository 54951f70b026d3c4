// Runs the kernels that decode on a GPU on the host, and compares their pixels with the CPU's:
//
//     device COUNT SEED THREADS STEP JPEG...
//
// Of each file: notes its points, draws COUNT boxes (some at its edges and of one pixel, the others
// as RandomResizedCrop draws them), decodes them in one batch in small chunks, by THREADS threads a
// block, and compares each with the CPU's full decode. Points are every STEP pixels; 0: of each
// file another distance. The same boxes are decoded from data that are resident on the device, too.
// Points that are moved must be refused, or change nothing. Prints how many boxes were equal, and
// what warps of 32 segments would go through.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/host.hpp"
#include "device_plan.hpp"
#include "jpeg/baseline.hpp"
#include "kernels.hpp"

namespace {

using namespace fastload;
using device::Left;

// Small, so that a batch has several chunks: 16 MiB.
constexpr uint64_t kMemory = 16 << 20;

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

    std::vector<uint8_t> pixels;

  private:
    int width_;
};

Box draw_box(int height, int width, int number, std::mt19937& random) {
    auto below = [&](int limit) {
        return static_cast<int>(random() % static_cast<unsigned>(limit));
    };
    auto uniform = [&](double low, double high) {
        return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
    };
    switch (number) {
        case 0: return {0, 0, height, width};
        case 1: return {height - 1, width - 1, 1, 1};
        case 2: return {below(height), 0, 1, width};
        case 3: return {0, below(width), height, 1};
        default: break;
    }
    const double area = uniform(0.08, 1.0) * height * width;
    const double ratio = std::exp(uniform(std::log(0.75), std::log(4.0 / 3.0)));
    const int w = std::clamp(static_cast<int>(std::lround(std::sqrt(area * ratio))), 1, width);
    const int h = std::clamp(static_cast<int>(std::lround(std::sqrt(area / ratio))), 1, height);
    return {below(height - h + 1), below(width - w + 1), h, w};
}

struct Totals {
    int64_t boxes = 0, wrong = 0, refused = 0, left = 0, moved = 0, moved_refused = 0;
    int64_t segments = 0, symbols = 0, blocks = 0, bits = 0, warps = 0, warp_turns = 0;
    int64_t longest = 0, crops = 0, buffers = 0, buffers_resident = 0;
    std::map<std::string, int> kinds;
};

// What warps of 32 threads would go through: as many turns as the longest segment of each.
void count_warps(const device::BatchPlan& plan, const device::HostRun& run, Totals& totals) {
    for (const device::Task& task : plan.tasks()) {
        for (uint32_t k = 0; k < task.count; k += 32) {
            uint32_t most = 0;
            for (uint32_t i = k; i < std::min(k + 32, task.count); ++i)
                most = std::max(most, run.turns[task.first_segment + i]);
            ++totals.warps;
            totals.warp_turns += most;
            totals.longest = std::max<int64_t>(totals.longest, most);
        }
    }
    for (const uint32_t turns : run.turns) totals.symbols += turns;
    for (const device::Segment& segment : plan.segments())
        totals.bits += segment.end_most - segment.begin;
    totals.segments += static_cast<int64_t>(plan.segments().size());
    for (const device::Chunk& chunk : plan.chunks())
        totals.blocks += static_cast<int64_t>(chunk.blocks);
    totals.crops += static_cast<int64_t>(plan.crops());
}

std::string kind_of(const jpeg::Frame& frame) {
    if (frame.components == 1) return "grey";
    const std::string name = std::to_string(frame.h) + "x" + std::to_string(frame.v);
    return name + (frame.colour == jpeg::Colour::rgb ? " RGB" : "") +
           (frame.restart_interval != 0 ? " restarts" : "");
}

// The data of an image as a device holds them: in memory without slack.
class Resident {
  public:
    Resident(const jpeg::Frame& frame, const std::vector<uint8_t>& file,
             const jpeg::Points& points) {
        std::vector<uint8_t> bytes;
        left_ = device::prepare_resident(frame, file.data(), file.size(), points, image_, bytes);
        bytes_.reset(new uint8_t[bytes.size()]);
        std::copy(bytes.begin(), bytes.end(), bytes_.get());
    }
    Left left() const { return left_; }
    Left plan(const jpeg::Frame& frame, const Box& box, uint64_t memory,
              device::CropPlan& out) const {
        return device::plan_resident(frame, image_, reinterpret_cast<uint64_t>(bytes_.get()), box,
                                     memory, out);
    }

  private:
    Left left_;
    device::ResidentImage image_;
    std::unique_ptr<uint8_t[]> bytes_;
};

void try_file(const char* name, int count, unsigned seed, unsigned threads, int step,
              Totals& totals) {
    std::ifstream stream(name, std::ios::binary);
    const std::vector<uint8_t> read((std::istreambuf_iterator<char>(stream)),
                                    std::istreambuf_iterator<char>());
    const std::vector<uint8_t> file = read;  // in memory of exactly this size
    static jpeg::BaselineDecoder decoder(*find_kernels("auto")->jpeg);
    if (decoder.open(file.data(), file.size(), int64_t{1} << 33) != jpeg::Reason::none ||
        !decoder.frame().one_scan) {
        ++totals.left;
        return;
    }
    const jpeg::Frame frame = decoder.frame();
    std::mt19937 random(seed);
    jpeg::Points points;
    const int steps[] = {8, 1, 4, 17};
    points.step = step == 0 ? steps[random() % 4] : std::max(1, step / (8 * frame.h));
    Collector whole(frame.width);
    if (decoder.read({0, 0, frame.height, frame.width}, true, whole, &points) !=
            jpeg::Reason::none ||
        points.points.empty()) {
        ++totals.left;
        return;
    }
    ++totals.kinds[kind_of(frame)];
    device::BatchPlan plan(kMemory), of_resident(kMemory);
    device::CropPlan crop;
    const Resident resident(frame, file, points);
    if (resident.left() != Left::none) {
        std::printf("%s: it cannot be resident (%d)\n", name, static_cast<int>(resident.left()));
        ++totals.refused;
        return;
    }
    for (int i = 0; i < count; ++i) {
        const Box box = draw_box(frame.height, frame.width, i, random);
        const Left left =
            device::plan_crop(frame, file.data(), file.size(), points, box, plan.memory(), crop);
        if (left == Left::none) {
            plan.add(crop);
            if (resident.plan(frame, box, plan.memory(), crop) != Left::none) ++totals.wrong;
            of_resident.add(crop);
        } else if (left == Left::memory) {
            ++totals.left;
        } else {
            std::printf("%s: box %d was not planned (%d)\n", name, i, static_cast<int>(left));
            ++totals.refused;
        }
    }
    plan.finish();
    of_resident.finish();
    auto is_equal = [&](const device::BatchPlan& batch, const device::HostRun& run, size_t i) {
        const device::Crop& made = batch.crop(i);
        for (int y = 0; y < made.height; ++y) {
            const size_t row = 3 * static_cast<size_t>(made.width);
            const uint8_t* const wanted =
                whole.pixels.data() +
                3 * (static_cast<size_t>(made.top + y) * static_cast<size_t>(frame.width) +
                     static_cast<size_t>(made.left));
            if (!std::equal(
                    wanted, wanted + row,
                    run.pixels.data() + batch.first_pixel(i) + static_cast<size_t>(y) * row))
                return false;
        }
        return true;
    };
    const device::HostRun run = device::run_on_host(plan, threads);
    if (!run.zeros_again) ++totals.wrong;
    for (size_t i = 0; i < plan.crops(); ++i) {
        ++totals.boxes;
        if (run.failures[i] != 0) {
            std::printf("%s: box %zu was refused\n", name, i);
            ++totals.refused;
        } else if (!is_equal(plan, run, i)) {
            std::printf("%s: box %zu differs\n", name, i);
            ++totals.wrong;
        }
    }
    count_warps(plan, run, totals);
    totals.buffers += static_cast<int64_t>(plan.buffer().size());
    totals.buffers_resident += static_cast<int64_t>(of_resident.buffer().size());
    const device::HostRun run_resident = device::run_on_host(of_resident, threads);
    if (!run_resident.zeros_again || run_resident.pixels != run.pixels) ++totals.wrong;
    for (const uint32_t failure : run_resident.failures) totals.refused += failure != 0 ? 1 : 0;
    // The control: a point that is wrong by a bit in its place, or in a DC coefficient; any, and
    // the last one. The first is not in an index: it follows from the header. Of the whole image,
    // and of its last pixel, which only the last points lead to.
    const jpeg::Points right = points;
    for (int k = 0; k < 4 && right.points.size() > 1; ++k) {
        points = right;
        const size_t last = right.points.size() - 1;
        jpeg::Point& moved = points.points[k < 2 ? 1 + random() % last : last];
        if (k % 2 == 0) {
            ++moved.position;
        } else {
            moved.dc[0] = static_cast<int16_t>(moved.dc[0] + 16);
        }
        for (const Box& box :
             {Box{0, 0, frame.height, frame.width}, Box{frame.height - 1, frame.width - 1, 1, 1}}) {
            device::BatchPlan bad(uint64_t{1} << 31);
            ++totals.moved;
            if (device::plan_crop(frame, file.data(), file.size(), points, box, bad.memory(),
                                  crop) != Left::none) {
                ++totals.moved_refused;
                continue;
            }
            bad.add(crop);
            const Resident badly(frame, file, points);
            if (badly.left() == Left::none &&
                badly.plan(frame, box, bad.memory(), crop) == Left::none)
                bad.add(crop);
            bad.finish();
            const device::HostRun judged = device::run_on_host(bad, threads);
            totals.moved_refused += judged.failures[0] != 0 ? 1 : 0;
            for (size_t i = 0; i < bad.crops(); ++i) {
                if (judged.failures[i] == 0 && !is_equal(bad, judged, i)) {
                    std::printf("%s: wrong pixels by a wrong point\n", name);
                    ++totals.wrong;
                }
            }
        }
    }
    // Points in the byte after the file's last one, which nothing may read: sanitizers see it.
    points = right;
    for (size_t k = 1; k < points.points.size(); ++k)
        points.points[k].position = int64_t{8} * static_cast<int64_t>(file.size()) + 3;
    for (int top = 0; top < frame.height; top += 4) {
        const Box box = {top, 0, 1, 1};
        (void)device::plan_crop(frame, file.data(), file.size(), points, box, UINT32_MAX, crop);
    }
    (void)Resident(frame, file, points);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) {
        std::fprintf(stderr, "device COUNT SEED THREADS STEP JPEG...\n");
        return 2;
    }
    const int count = std::atoi(argv[1]);
    const auto seed = static_cast<unsigned>(std::atoi(argv[2]));
    const auto threads = static_cast<unsigned>(std::atoi(argv[3]));
    const int step = std::atoi(argv[4]);
    Totals totals;
    for (int i = 5; i < argc; ++i) {
        try_file(argv[i], count, seed + static_cast<unsigned>(i), threads, step, totals);
    }
    for (const auto& [kind, files] : totals.kinds)
        std::printf("%s: %d files\n", kind.c_str(), files);
    std::printf(
        "%lld boxes, %lld wrong, %lld refused, %lld left to the CPU; of %lld wrong points "
        "%lld refused, the others change nothing\n",
        static_cast<long long>(totals.boxes), static_cast<long long>(totals.wrong),
        static_cast<long long>(totals.refused), static_cast<long long>(totals.left),
        static_cast<long long>(totals.moved), static_cast<long long>(totals.moved_refused));
    const double crops = static_cast<double>(std::max<int64_t>(totals.crops, 1));
    std::printf(
        "a crop: %.1f segments, %.0f blocks, %.0f symbols, %.0f bytes, %.2f warps, %.0f turns of "
        "warps; %.3f of lanes busy; longest warp %lld turns\n",
        static_cast<double>(totals.segments) / crops, static_cast<double>(totals.blocks) / crops,
        static_cast<double>(totals.symbols) / crops, static_cast<double>(totals.bits) / 8 / crops,
        static_cast<double>(totals.warps) / crops, static_cast<double>(totals.warp_turns) / crops,
        static_cast<double>(totals.symbols) /
            (32.0 * static_cast<double>(std::max<int64_t>(totals.warp_turns, 1))),
        static_cast<long long>(totals.longest));
    std::printf("to be copied, a crop: %.0f bytes; of images that are resident %.0f\n",
                static_cast<double>(totals.buffers) / crops,
                static_cast<double>(totals.buffers_resident) / crops);
    return totals.wrong == 0 && totals.refused == 0 ? 0 : 1;
}
