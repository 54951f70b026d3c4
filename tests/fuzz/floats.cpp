// Fuzz target: changes of float images, and turned masks. The bytes choose one or two images of 1
// to 65,500 pixels a side and 1 to 4 channels, of bytes or floats, in any order of channels; the
// size that is kept; matrices and numbers of steps, infinite and not numbers among them;
// mirrorings.
//
// Images and tables lie in heap memory of exactly their size, and so does the memory that a loop is
// given. What must hold, besides that memory is in order: all instruction sets that run here make
// the same numbers, up to rounding, where all that is given is of moderate size and there is no
// gamma; without steps and turns they are those of the plain path below, exactly; a job of the pool
// makes what its loops do; and a turned mask has classes of the mask, or 0.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "choices.hpp"
#include "colour_loops.hpp"
#include "floats.hpp"
#include "pool.hpp"

namespace {

using namespace fastload;

constexpr int64_t kMostPixels = 1 << 12;

// A number of any bits, or of moderate size.
float number(Choices& choices, bool moderate) {
    if (!moderate && choices.flag()) {
        const uint32_t bits = choices.bits();
        float x;
        std::memcpy(&x, &bits, sizeof x);
        return x;
    }
    return static_cast<float>(0.5 + choices.uniform());
}

float step_number(Choices& choices, FloatKind kind, int position, Size size, bool moderate) {
    if (kind == FloatKind::low_resolution && position < 2) {
        const int side = position == 0 ? size.height : size.width;
        return static_cast<float>(1 + choices.word() % side);
    }
    if (kind == FloatKind::blur) return number(choices, moderate) / kBlurTaps;
    return number(choices, moderate);
}

bool same(const std::vector<float>& a, const std::vector<float>& b, float most) {
    for (size_t i = 0; i < a.size(); ++i) {
        const bool equal = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
        if (!equal && !(std::fabs(a[i] - b[i]) <= most)) return false;
    }
    return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Choices choices(data, size);
    const int bits = choices.byte(), more = choices.byte();
    const int count = 1 + bits % 2, channels = 1 + more % 4;
    const bool bytes = (bits & 2) != 0, given_last = (bits & 4) != 0, made_last = (bits & 8) != 0,
               turns = (bits & 16) != 0, moderate = (bits & 32) != 0;
    const Size in = choices.size(kMostPixels / channels);
    const Size out = {1 + choices.word() % in.height, 1 + choices.word() % in.width};
    const bool blurs = std::min(out.height, out.width) > kBlurTaps / 2;
    const size_t plane = static_cast<size_t>(in.height) * static_cast<size_t>(in.width),
                 kept = static_cast<size_t>(out.height) * static_cast<size_t>(out.width);
    const size_t images = static_cast<size_t>(count), all = static_cast<size_t>(channels);

    const Pixels pixels = noise(images * all * plane, more / 4);
    std::vector<float> floats;
    for (const uint8_t value : pixels) {
        floats.push_back(static_cast<float>(value) / 255.0f);
        if (!moderate && value == 7) floats.back() = number(choices, false);
    }
    const auto kept_bytes = exactly(pixels.data(), pixels.size());
    const auto kept_floats = exactly(floats.data(), floats.size());

    std::vector<float> scale, offset, numbers;
    for (int channel = 0; channel < channels; ++channel) {
        scale.push_back(number(choices, moderate) / 255.0f);
        offset.push_back(number(choices, moderate));
    }
    std::vector<double> matrices;
    std::vector<uint64_t> keys;
    const std::unique_ptr<bool[]> rows(new bool[images]), mirrors(new bool[2 * images]);
    for (size_t row = 0; row < images; ++row) {
        rows[row] = choices.flag();
        mirrors[2 * row] = choices.flag();
        mirrors[2 * row + 1] = choices.flag();
        for (int k = 0; k < 4; ++k) {
            const double sign = choices.flag() ? 1.0 : -1.0;
            matrices.push_back(sign * static_cast<double>(number(choices, moderate)));
        }
    }
    const size_t steps = static_cast<size_t>(choices.byte() % 4);
    std::vector<int32_t> kinds;
    for (size_t step = 0; step < steps; ++step) {
        kinds.push_back(choices.byte() % kFloatKinds);
        if (!blurs && kinds.back() == static_cast<int32_t>(FloatKind::blur)) kinds.back() = 2;
    }
    const std::unique_ptr<bool[]> applies(new bool[images * steps * all]);
    for (size_t row = 0; row < images; ++row) {
        for (size_t step = 0; step < steps; ++step) {
            keys.push_back(choices.bits());
            for (size_t channel = 0; channel < all; ++channel) {
                applies[(row * steps + step) * all + channel] = choices.flag();
                for (int k = 0; k < kFloatNumbers; ++k)
                    numbers.push_back(step_number(choices, static_cast<FloatKind>(kinds[step]), k,
                                                  out, moderate));
            }
        }
    }
    const auto kept_scale = exactly(scale.data(), scale.size());
    const auto kept_offset = exactly(offset.data(), offset.size());
    const auto kept_numbers = exactly(numbers.data(), numbers.size());
    const auto kept_matrices = exactly(matrices.data(), matrices.size());
    const auto kept_keys = exactly(keys.data(), keys.size());
    const auto kept_kinds = exactly(kinds.data(), kinds.size());

    FloatImages given;
    given.bytes = bytes ? kept_bytes.get() : nullptr;
    given.floats = bytes ? nullptr : kept_floats.get();
    given.count = count;
    given.size = in;
    given.channels = channels;
    given.image_step = static_cast<int64_t>(plane * all);
    given.row_step = int64_t{in.width} * (given_last ? channels : 1);
    given.pixel_step = given_last ? channels : 1;
    given.channel_step = given_last ? 1 : static_cast<int64_t>(plane);
    given.out_size = out;
    given.channels_last = made_last;
    FloatTable table;
    table.scale = kept_scale.get();
    table.offset = kept_offset.get();
    if (turns) table.turn = {kept_matrices.get(), rows.get()};
    table.steps = static_cast<int>(steps);
    table.kinds = kept_kinds.get();
    table.applies = applies.get();
    table.numbers = kept_numbers.get();
    table.keys = kept_keys.get();
    table.mirrors = mirrors.get();

    const auto made_by = [&](auto work) {
        const std::vector<float> nothing(images * all * kept, -1.0f);
        const auto memory = exactly(nothing.data(), nothing.size());
        given.out = memory.get();
        work();
        return std::vector<float>(memory.get(), memory.get() + nothing.size());
    };
    const auto looped = [&](const ColourLoops* loops) {
        return made_by([&] {
            const size_t needed = floats_needed(given, table);
            const std::vector<float> nothing(needed, 0.0f);
            const auto memory = exactly(nothing.data(), needed);
            for (int row = 0; row < count; ++row)
                loops->change_floats(given, table, row, memory.get());
        });
    };
    const std::vector<float> separate = looped(&kSeparateColour);
    std::vector<float> best = separate;
    for (const ColourLoops* loops : colour_loops(can_fuse_colour())) {
        const std::vector<float> made = looped(loops);
        if (loops == colour_loops(can_fuse_colour()).front()) best = made;
        // Gammas stretch what is left of a range, and a plane of few values may have next to none;
        // places are rounded to float32.
        const bool stretches = std::any_of(kinds.begin(), kinds.end(), [](int32_t kind) {
            return kind >= static_cast<int32_t>(FloatKind::gamma_of_negative);
        });
        const bool is_near = !turns || std::max(in.height, in.width) <= 256;
        if (moderate && !stretches && is_near)
            require(same(made, separate, 1e-3f), "instruction sets differ");
    }
    if (!turns && steps == 0) {
        const int top = in.height / 2 - out.height / 2, left = in.width / 2 - out.width / 2;
        for (int row = 0; row < count; ++row) {
            for (int channel = 0; channel < channels; ++channel) {
                for (int y = 0; y < out.height; ++y) {
                    for (int x = 0; x < out.width; ++x) {
                        const int from_y = mirrors[2 * row] ? out.height - 1 - y : y,
                                  from_x = mirrors[2 * row + 1] ? out.width - 1 - x : x;
                        const int64_t from =
                            given.image_step * row + given.row_step * (top + from_y) +
                            given.pixel_step * (left + from_x) + given.channel_step * channel;
                        const auto to = static_cast<size_t>(
                            made_last
                                ? ((int64_t{row} * out.height + y) * out.width + x) * channels +
                                      channel
                                : ((int64_t{row} * channels + channel) * out.height + y) *
                                          out.width +
                                      x);
                        const float wanted =
                            bytes ? static_cast<float>(kept_bytes[static_cast<size_t>(from)]) *
                                            scale[static_cast<size_t>(channel)] +
                                        offset[static_cast<size_t>(channel)]
                                  : kept_floats[static_cast<size_t>(from)];
                        require(separate[to] == wanted ||
                                    (std::isnan(wanted) && std::isnan(separate[to])),
                                "a pixel is not that of the plain path");
                    }
                }
            }
        }
    }
    static Pool pool(1, "auto");
    const std::vector<float> by_job = made_by([&] {
        const auto job = floats_job(given, table);
        pool.run(*job);
        job->wait();
        require(job->take_failures().empty(), "a sound table failed");
    });
    require(same(by_job, best, 0.0f), "a job differs from its loops");

    const TurnTable turn = {kept_matrices.get(), rows.get()};
    const auto classes = exactly(pixels.data(), images * plane);
    const std::vector<uint16_t> wide(pixels.begin(),
                                     pixels.begin() + static_cast<ptrdiff_t>(images * plane));
    const auto wide_classes = exactly(wide.data(), wide.size());
    const std::unique_ptr<uint8_t[]> turned(new uint8_t[images * kept]);
    const std::unique_ptr<uint16_t[]> wide_turned(new uint16_t[images * kept]);
    const ClassMasks<uint8_t> masks = {classes.get(), count, in, turned.get(), out};
    const ClassMasks<uint16_t> wide_masks = {wide_classes.get(), count, in, wide_turned.get(), out};
    for (const auto& job : {turn_masks_job(masks, turn), turn_masks_job(wide_masks, turn)}) {
        pool.run(*job);
        job->wait();
        require(job->take_failures().empty(), "a sound mask failed");
    }
    for (size_t row = 0; row < images; ++row) {
        bool there[256] = {true};
        for (size_t i = 0; i < plane; ++i) there[classes[row * plane + i]] = true;
        for (size_t i = row * kept; i < (row + 1) * kept; ++i) {
            require(there[turned[i]], "a class that the mask has not");
            require(turned[i] == wide_turned[i], "masks of 16 bits differ");
        }
    }
    return 0;
}
