// Runs the kernels that make batches and change colours on a GPU, on the host, in memory of exactly
// the size that they have there:
//
//     images COUNT SEED THREADS
//
// COUNT random calls of each: by one thread of the host for a block, then by THREADS. Both must
// make the same bytes. For sanitizers: what they make is compared with torch's operations and with
// the CPU's core in tests/test_render_fused.py and tests/test_render_by_nvrtc.py.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/blur.cuh"
#include "cuda/colour.cuh"
#include "cuda/convert.cuh"
#include "cuda/host.hpp"
#include "cuda/render.cuh"

namespace {

using namespace fastload::device;

// Memory without slack, so that a sanitizer sees the first access beyond.
template <typename T>
class Exact {
  public:
    explicit Exact(size_t count) : size_(count), made_(new T[count]()) {}
    explicit Exact(const std::vector<T>& from) : Exact(from.size()) {
        std::copy(from.begin(), from.end(), made_.get());
    }
    T* get() { return made_.get(); }
    std::string bytes() const {
        return {reinterpret_cast<const char*>(made_.get()), size_ * sizeof(T)};
    }

  private:
    size_t size_;
    std::unique_ptr<T[]> made_;
};

class Tries {
  public:
    Tries(unsigned seed, unsigned threads) : random_(seed), threads_(threads) {}

    void render();
    void normalise();
    void drawn();
    void recolour();
    void blur();
    void add();

    int calls = 0, different = 0;

  private:
    int between(int least, int most) {
        return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
    }
    bool one_in(int count) { return between(1, count) == 1; }
    float part() { return static_cast<float>(random_()) / 4294967296.0f; }
    // Mostly of the size that an operation makes.
    float number(float size) {
        if (one_in(30)) return std::numeric_limits<float>::quiet_NaN();
        if (one_in(30)) return one_in(2) ? 1e30f : -std::numeric_limits<float>::infinity();
        return (part() * 2 - 0.5f) * size;
    }
    std::vector<uint8_t> noise(size_t count) {
        std::vector<uint8_t> made(count);
        const int least = between(0, 255), most = between(least, 255);
        for (uint8_t& value : made) value = static_cast<uint8_t>(between(least, most));
        return made;
    }
    // Runs kernels one after the other, with one and with several threads a block.
    template <typename Run, typename... Results>
    void compare(Run run, Results&... results) {
        run(1u);
        const std::string alone = (results.bytes() + ...);
        run(threads_);
        ++calls;
        different += alone != (results.bytes() + ...) ? 1 : 0;
    }
    template <typename Arguments>
    void launch(const char* name, const Arguments& arguments, uint64_t blocks, unsigned threads) {
        if (!run_kernel_on_host(name, reinterpret_cast<const uint8_t*>(&arguments),
                                sizeof arguments, blocks, threads)) {
            std::fprintf(stderr, "no kernel %s\n", name);
            std::exit(2);
        }
    }

    std::mt19937 random_;
    const unsigned threads_;
};

uint64_t divide_up(int64_t count, int64_t each) {
    return static_cast<uint64_t>((count + each - 1) / each);
}

void Tries::render() {
    RenderArguments arguments{};
    arguments.rows = between(1, 3);
    arguments.height = between(1, 20);
    arguments.width = between(1, 20);
    arguments.channels = between(1, 4);
    arguments.cubic = between(0, 1);
    arguments.a = -0.5f;
    arguments.mode = between(0, 3);
    const int kind = between(0, 2);
    arguments.how = kind == 0 ? between(0, 2) : kind == 1 ? 4 : 3;
    arguments.pads = between(0, 1);
    std::vector<int64_t> table;
    int64_t first = 0;
    for (int row = 0; row < arguments.rows; ++row) {
        const int height = between(1, 50), width = between(1, 50);
        const int box[2] = {between(1, height), between(1, width)};
        int size[2], window[2], taps[2];
        for (int axis = 0; axis < 2; ++axis) {
            const int shown = axis == 0 ? arguments.height : arguments.width;
            const bool gathers = kind == 0 && arguments.how == kGather;
            size[axis] = gathers ? box[axis] : between(1, 50);
            if (gathers) arguments.pads = 1;  // the box may be smaller than what is shown
            if (arguments.pads == 0) size[axis] = std::max(size[axis], shown);
            window[axis] = arguments.pads != 0 ? between(-60, 60) : between(0, size[axis] - shown);
            const float scale = static_cast<float>(box[axis]) / static_cast<float>(size[axis]);
            const float reach = std::max(scale, 1.0f) * (arguments.cubic != 0 ? 2.0f : 1.0f);
            taps[axis] = kind == 2 ? static_cast<int>(std::ceil(2 * reach)) + 1
                                   : (arguments.cubic != 0 ? 4 : 2);
            arguments.most = std::max(arguments.most, taps[axis]);
        }
        // Half of the boxes are at the end of their image.
        const bool last = one_in(2);
        table.insert(table.end(), {last ? height - box[0] : between(0, height - box[0]),
                                   last ? width - box[1] : between(0, width - box[1]), box[0],
                                   box[1], size[0], size[1], window[0], window[1], between(0, 1),
                                   between(0, 1), first, width, taps[0], taps[1]});
        first += int64_t{height} * width;
    }
    if (arguments.pads != 0 && kind == 0 && arguments.how == kGather) {
        for (size_t row = 0; row < table.size(); row += kTableColumns) {
            table[row + 4] = table[row + 2];
            table[row + 5] = table[row + 3];
        }
    }
    const int64_t sides = arguments.height + arguments.width;
    const int64_t plane = int64_t{arguments.height} * arguments.width;
    Exact<uint8_t> pixels(noise(static_cast<size_t>(first * arguments.channels)));
    Exact<int64_t> entries(table);
    Exact<int32_t> firsts(static_cast<size_t>(arguments.rows * sides));
    Exact<float> weights(static_cast<size_t>(arguments.rows * sides * arguments.most));
    Exact<float> fill(static_cast<size_t>(arguments.channels));
    Exact<uint8_t> out(static_cast<size_t>(arguments.rows * plane * arguments.channels));
    arguments.pixels = pixels.get();
    arguments.table = entries.get();
    arguments.firsts = firsts.get();
    arguments.weights = weights.get();
    arguments.fill = fill.get();
    arguments.out = out.get();
    const int together = arguments.channels == 3 ? 3 : 1;
    const char* const kinds[] = {"nearest", "interpolated", "antialiased"};
    const std::string name =
        std::string("fastload_render_") + kinds[kind] + "_" + std::to_string(together);
    const auto rows = static_cast<uint64_t>(arguments.rows);
    const auto groups = static_cast<uint64_t>(arguments.channels / together);
    compare(
        [&](unsigned threads) {
            if (kind == 2)
                launch("fastload_weigh", arguments, rows * divide_up(sides, kRenderThreads),
                       threads);
            launch(name.c_str(), arguments, rows * divide_up(plane, kRenderThreads) * groups,
                   threads);
        },
        out);
}

void Tries::normalise() {
    NormaliseArguments arguments{};
    arguments.rows = between(1, 3);
    arguments.channels = between(1, 4);
    arguments.width = between(1, 30);
    const int height = between(1, 30);
    arguments.plane = arguments.width * height;
    arguments.values = int64_t{arguments.plane} * arguments.channels;
    arguments.is_planar = between(0, 1);
    arguments.type = between(0, 4);
    arguments.mixing = between(0, 2);
    arguments.weight = part();
    arguments.of_other = 1.0f - arguments.weight;
    arguments.right = between(0, arguments.width);
    arguments.bottom = between(0, height);
    const auto count = static_cast<size_t>(arguments.values * arguments.rows);
    const size_t widths[] = {1, 4, 2, 2, 8};
    const auto channels = static_cast<size_t>(arguments.channels);
    Exact<uint8_t> images(noise(count));
    Exact<float> scale(std::vector<float>(channels, 1.0f)),
        offset(std::vector<float>(channels, 0.0f));
    Exact<uint64_t> out((count * widths[arguments.type] + 7) / 8);
    arguments.images = images.get();
    arguments.scale = scale.get();
    arguments.offset = offset.get();
    arguments.out = out.get();
    const uint64_t blocks =
        static_cast<uint64_t>(arguments.rows) * divide_up(arguments.values, kConvertBlock);
    compare([&](unsigned threads) { launch("fastload_normalise", arguments, blocks, threads); },
            out);
}

void Tries::drawn() {
    DrawnArguments arguments{};
    arguments.height = between(1, 20);
    arguments.width = between(1, 20);
    arguments.channels = between(1, 4);
    arguments.above = between(0, 9);
    arguments.left = between(0, 9);
    arguments.pads = 1;
    arguments.mode = between(0, 3);
    arguments.out_height = between(1, arguments.height + arguments.above);
    arguments.out_width = between(1, arguments.width + arguments.left);
    arguments.count_down = arguments.height + arguments.above - arguments.out_height + 1;
    arguments.count_across = arguments.width + arguments.left - arguments.out_width + 1;
    arguments.step_count = between(0, 3);
    arguments.converts = between(0, 1);
    arguments.type = arguments.converts != 0 ? between(1, 4) : 0;
    arguments.first = between(0, 2);
    const int images = between(1, 4), batch = between(1, 4);
    const auto samples = static_cast<size_t>(arguments.first + batch);
    std::vector<int64_t> order{between(0, 1 << 30), between(0, 1 << 30), between(0, 9)}, rows,
        steps;
    for (size_t i = 0; i < samples; ++i) {
        order.push_back(between(0, 1000));
        rows.push_back(between(0, images - 1));
    }
    for (int i = 0; i < std::max(1, arguments.step_count); ++i)
        steps.insert(steps.end(), {i == 1 ? int64_t{kCrop} : between(0, 1), between(0, 9),
                                   int64_t{1} << between(0, 53)});
    const auto channels = static_cast<size_t>(arguments.channels);
    const int64_t values = int64_t{arguments.out_height} * arguments.out_width * arguments.channels;
    Exact<uint8_t> pixels(
        noise(static_cast<size_t>(images * arguments.height * arguments.width) * channels));
    Exact<int64_t> orders(order), of_rows(rows), of_steps(steps);
    Exact<float> fill(channels), scale(channels), offset(channels);
    const size_t widths[] = {1, 4, 2, 2, 8};
    const auto bytes = static_cast<size_t>(batch * values) * widths[arguments.type];
    Exact<uint64_t> out((bytes + 7) / 8);
    arguments.pixels = pixels.get();
    arguments.order = orders.get();
    arguments.rows = of_rows.get();
    arguments.steps = of_steps.get();
    arguments.fill = fill.get();
    arguments.scale = scale.get();
    arguments.offset = offset.get();
    arguments.out = out.get();
    const uint64_t blocks = static_cast<uint64_t>(batch) * divide_up(values, kConvertBlock);
    compare([&](unsigned threads) { launch("fastload_drawn", arguments, blocks, threads); }, out);
}

void Tries::recolour() {
    ColourArguments arguments{};
    const int images = between(1, 2);
    arguments.chains = between(1, 2);
    arguments.rows = images * arguments.chains;
    arguments.channels = one_in(2) ? 1 : 3;
    arguments.height = between(1, 40);
    arguments.width = between(1, 40);
    const int plane = arguments.height * arguments.width;
    const bool planar = one_in(2);
    arguments.stride_row = int64_t{plane} * arguments.channels;
    arguments.stride_channel = planar ? plane : 1;
    arguments.stride_pixel = planar ? 1 : arguments.channels;
    arguments.steps = between(1, 5);
    arguments.block_pixels = 256 * between(1, 3);
    arguments.bilinear = between(0, 1);
    arguments.fills = between(0, 1);
    const auto rows = static_cast<size_t>(arguments.rows);
    std::vector<int32_t> kinds(rows * static_cast<size_t>(arguments.steps), -1), counts;
    std::vector<std::vector<int32_t>> begins;
    for (size_t row = 0; row < rows; ++row) {
        const int some = between(0, arguments.steps);
        std::vector<int32_t> starts{0};
        for (int i = 0; i < some; ++i) {
            const int kind = between(0, kCutOut);
            kinds[row * static_cast<size_t>(arguments.steps) + static_cast<size_t>(i)] = kind;
            const bool reads_others = known_for(kind) != Known::nothing || kind == kSharpness ||
                                      kind == kAffine ||
                                      (kind >= kMoveBilinear && kind <= kMoveNearest);
            if (i > 0 && reads_others) starts.push_back(i);
        }
        counts.push_back(static_cast<int32_t>(starts.size()));
        arguments.passes = std::max(arguments.passes, counts.back());
        starts.push_back(some);
        begins.push_back(starts);
    }
    std::vector<int32_t> of_passes;
    for (std::vector<int32_t>& starts : begins) {
        starts.resize(static_cast<size_t>(arguments.passes) + 1, starts.back());
        of_passes.insert(of_passes.end(), starts.begin(), starts.end());
    }
    std::vector<float> numbers;
    for (size_t i = 0; i < kinds.size() * kStepNumbers; ++i)
        numbers.push_back(number(one_in(2) ? 2.0f : 60.0f));
    arguments.words = 2 + 256 * arguments.channels;
    const auto values = static_cast<size_t>(arguments.stride_row);
    Exact<uint8_t> from(noise(values * static_cast<size_t>(images)));
    Exact<uint8_t> out(values * rows), scratch(values * rows);
    Exact<int32_t> of_kinds(kinds), of_begins(of_passes), of_counts(counts);
    Exact<float> of_numbers(numbers), fill(static_cast<size_t>(arguments.channels));
    const size_t words = rows * static_cast<size_t>(arguments.passes * arguments.words);
    arguments.images = from.get();
    arguments.kinds = of_kinds.get();
    arguments.numbers = of_numbers.get();
    arguments.begins = of_begins.get();
    arguments.counts = of_counts.get();
    arguments.fill = fill.get();
    arguments.out = out.get();
    arguments.scratch = scratch.get();
    const std::string name = "fastload_recolour_" + std::to_string(arguments.channels);
    compare(
        [&](unsigned threads) {
            Exact<uint64_t> statistics(words / 2);
            arguments.statistics = reinterpret_cast<uint32_t*>(statistics.get());
            for (arguments.pass = -1; arguments.pass < arguments.passes; ++arguments.pass)
                launch(name.c_str(), arguments, rows * divide_up(plane, arguments.block_pixels),
                       threads);
        },
        out);
}

void Tries::blur() {
    BlurArguments arguments{};
    arguments.rows = between(1, 3);
    arguments.planes = between(1, 3);
    const int height = between(1, 30), width = between(1, 30);
    const bool down = one_in(2);
    arguments.length = down ? height : width;
    arguments.step = down ? width : 1;
    arguments.plane = height * width;
    arguments.stride_line = down ? 1 : width;
    arguments.line_length = down ? width : height;
    arguments.taps = 2 * between(0, std::min(7, arguments.length - 1)) + 1;
    const auto count = static_cast<size_t>(arguments.rows * arguments.planes * arguments.plane);
    const std::vector<uint8_t> some = noise(count);
    Exact<uint8_t> bytes(some);
    Exact<float> floats(std::vector<float>(some.begin(), some.end()));
    Exact<float> weights(std::vector<float>(static_cast<size_t>(arguments.taps * arguments.rows),
                                            1.0f / static_cast<float>(arguments.taps)));
    arguments.weights = weights.get();
    arguments.images = down ? static_cast<const void*>(bytes.get()) : floats.get();
    Exact<float> wide(down ? count : 0);
    Exact<uint8_t> narrow(down ? 0 : count);
    arguments.out = down ? static_cast<void*>(wide.get()) : narrow.get();
    const uint64_t blocks = static_cast<uint64_t>(arguments.rows * arguments.planes) *
                            divide_up(arguments.plane, kBlurThreads);
    compare(
        [&](unsigned threads) {
            launch(down ? "fastload_blur_down" : "fastload_blur_across", arguments, blocks,
                   threads);
        },
        wide, narrow);
}

void Tries::add() {
    AddArguments arguments{};
    const int rows = between(1, 3);
    arguments.size = between(1, 3000);
    arguments.part_count = between(1, 3);
    const auto count = static_cast<size_t>(arguments.size * rows);
    const auto parts_of = static_cast<size_t>(arguments.part_count);
    Exact<uint8_t> images(noise(count)), parts(noise(count * parts_of)), out(count);
    Exact<float> weights(
        std::vector<float>(static_cast<size_t>(rows) * (1 + parts_of), 1.0f / 4.0f));
    arguments.images = images.get();
    arguments.parts = parts.get();
    arguments.weights = weights.get();
    arguments.out = out.get();
    const uint64_t blocks = static_cast<uint64_t>(rows) * divide_up(arguments.size, kAddBlock);
    compare([&](unsigned threads) { launch("fastload_add_weighted", arguments, blocks, threads); },
            out);
}

}  // namespace

int main(int count, char** given) {
    if (count != 4) return std::fprintf(stderr, "images COUNT SEED THREADS\n"), 2;
    Tries tries(static_cast<unsigned>(std::atoi(given[2])),
                static_cast<unsigned>(std::atoi(given[3])));
    for (int i = 0; i < std::atoi(given[1]); ++i) {
        tries.render();
        tries.normalise();
        tries.drawn();
        tries.recolour();
        tries.blur();
        tries.add();
    }
    std::printf("%d calls, %d different\n", tries.calls, tries.different);
    return tries.different == 0 ? 0 : 1;
}
