// Fuzz target: normal noise, and boxes of normal numbers. The bytes choose one to three images of 1
// to 65,500 pixels a side (fewer rows where they would be too large to be quick) and 1 to 5
// channels, their keys, and numbers, infinite and not numbers among them.
//
// Images lie in heap memory at any offset, and end with it; tables lie in heap memory of exactly
// their size. What must hold, besides that memory is in order: every instruction set that runs here
// makes the pixels, and the numbers, of the plain path below, which has a value at a time; a job of
// the pool makes the same; and the bytes before the images stay as they are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "choices.hpp"
#include "colour_loops.hpp"
#include "draws.hpp"
#include "noise.hpp"
#include "pool.hpp"

namespace {

using namespace fastload;

constexpr int64_t kMostPixels = 1 << 12;

float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Whether a number is the library's: what must be the same is compared with `plain_normal`, and
// that with these. To 5e-5, and, where the share is next to 1, to what rounding it to 24 bits makes
// of the radius: 2^-24 in its square, so 2^-24 / radius, and 2^-12 at most.
bool is_close(float made, uint32_t of_radius, uint32_t of_angle, bool sine) {
    const double share = static_cast<double>(of_radius >> 1 | 1) * 0x1p-31;
    const double angle = of_angle * (2.0 * 3.14159265358979323846 * 0x1p-32);
    const double radius = std::sqrt(-2.0 * std::log(share));
    const double slack = 5e-5 + std::min(0x1p-12, 0x1p-24 / radius);
    return std::fabs(made - radius * (sine ? std::sin(angle) : std::cos(angle))) < slack;
}

float plain_normal(uint32_t of_radius, uint32_t of_angle, bool sine) {
    const auto x = static_cast<float>(static_cast<int32_t>(of_radius >> 1 | 1));
    int exponent = 0;
    float mantissa = std::frexp(x, &exponent);  // from 1/2 to below 1
    if (mantissa < float_of(0x3f3504f3)) {
        mantissa *= 2.0f;
        --exponent;
    }
    const float f = mantissa - 1.0f, e = static_cast<float>(exponent - 31), s = f / (2.0f + f),
                z = s * s, w = z * z;
    const float r =
        z * (0.66666662693f + w * 0.28498786688f) + w * (0.40000972152f + w * 0.24279078841f);
    const float h = 0.5f * f * f;
    const float log = s * (h + r) + e * 9.0580006145e-06f - h + f + e * 6.9313812256e-01f;
    // To the nearest multiple of a quarter turn, halves up.
    const int64_t quarter = (int64_t{of_angle} + (1 << 29)) >> 30;
    const float a = static_cast<float>(int64_t{of_angle} - (quarter << 30)) * 1.46291807927e-09f;
    const float q = a * a;
    const float sin =
        ((-1.9515295891e-4f * q + 8.3321608736e-3f) * q - 1.6666654611e-1f) * q * a + a;
    const float cos =
        ((2.443315711809948e-5f * q - 1.388731625493765e-3f) * q + 4.166664568298827e-2f) * q * q -
        0.5f * q + 1.0f;
    const float turned[5] = {cos, -sin, -cos, sin, cos};
    return std::sqrt(-2.0f * log) * turned[(quarter + (sine ? 3 : 0)) % 4];
}

// The number at a place.
float plain_number(uint64_t key, size_t place) {
    const size_t group = place / 64, word = place % 64 / 16, block = 16 * group + place % 16;
    const Words words = philox({static_cast<uint32_t>(block), 0, 0, 0}, key);
    const uint32_t first = words[word / 2 * 2], second = words[word / 2 * 2 + 1];
    const float made = plain_normal(first, second, word % 2 != 0);
    require(is_close(made, first, second, word % 2 != 0), "not a normal number");
    return made;
}

// The number of a counter.
float plain_number_of(uint64_t key, uint64_t counter) {
    uint64_t z = key + (counter + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    const auto first = static_cast<uint32_t>(z >> 32), second = static_cast<uint32_t>(z);
    const float made = plain_normal(first, second, false);
    require(is_close(made, first, second, false), "not a normal number");
    return made;
}

float number(Choices& choices) {
    const int how = choices.byte();
    if (how < 16) return float_of(choices.bits());
    const auto uniform = static_cast<float>(choices.uniform());
    return how < 128 ? 200.0f * uniform - 50.0f : 4.0f * uniform - 2.0f;
}

uint8_t noisy(const NoiseTable& table, uint8_t value, float noise) {
    // What is no number is the least.
    const float within = std::isnan(noise) ? -32768.0f : std::clamp(noise, -32768.0f, 32767.0f);
    const int sum = value + static_cast<int>(within);
    return static_cast<uint8_t>(table.clips ? std::clamp(sum, 0, 255) : sum & 255);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Choices choices(data, size);
    const int bits = choices.byte(), more = choices.byte();
    const int count = 1 + bits % 3, channels = 1 + more % 5;
    const auto offset = static_cast<size_t>(choices.byte() % 65);
    const Size shape = choices.size(kMostPixels / channels);
    const size_t values = static_cast<size_t>(channels) * static_cast<size_t>(shape.height) *
                          static_cast<size_t>(shape.width);
    std::vector<uint64_t> keys;
    std::vector<float> scales, shifts;
    std::unique_ptr<bool[]> rows(new bool[count]);
    for (int i = 0; i < count; ++i) {
        keys.push_back(uint64_t{choices.bits()} << 32 | choices.bits());
        scales.push_back(number(choices));
        shifts.push_back(number(choices));
        rows[i] = choices.flag();
    }
    const auto kept_keys = exactly(keys.data(), keys.size());
    const auto kept_scales = exactly(scales.data(), scales.size());
    const auto kept_shifts = exactly(shifts.data(), shifts.size());
    const NoiseTable table = {kept_keys.get(),   kept_scales.get(),
                              kept_shifts.get(), (bits & 8) != 0 ? rows.get() : nullptr,
                              (bits & 32) != 0,  (bits & 64) != 0};
    const Pixels before = noise(static_cast<size_t>(count) * values, more / 5);

    Pixels plain = before;
    for (int row = 0; row < count; ++row) {
        if (table.rows && !table.rows[row]) continue;
        for (size_t i = 0; i < values; ++i) {
            const size_t place = table.shared ? i / static_cast<size_t>(channels) : i;
            uint8_t& value = plain[static_cast<size_t>(row) * values + i];
            const float product = plain_number(keys[row], place) * scales[row];
            value = noisy(table, value, product + shifts[row]);
        }
    }
    for (const bool fused : {false, true}) {
        for (const ColourLoops* loops : colour_loops(fused)) {
            const Pixels made = in_place(before, offset, [&](uint8_t* pixels) {
                for (int row = 0; row < count; ++row, pixels += values) {
                    if (!table.rows || table.rows[row])
                        loops->add_noise(table, row, shape, channels, pixels);
                }
            });
            require(made == plain, "an instruction set differs from the plain path");
            const std::unique_ptr<float[]> numbers(new float[values]);
            loops->normals(keys[0], values, numbers.get());
            for (size_t i = 0; i < values; ++i)
                require(numbers[i] == plain_number(keys[0], i), "a number differs");
        }
    }
    // Boxes of counters, of as many numbers.
    const auto any = [&] {
        const uint64_t bits = uint64_t{choices.bits()} << 32 | choices.bits();
        return static_cast<int64_t>(choices.flag() ? bits : bits % 4096);
    };
    std::vector<CounterBox> boxes;
    std::vector<float> wanted;
    for (int i = 0; i < count; ++i) {
        const CounterBox box = {any(), 1 + choices.byte() % 4, any(), 1 + choices.byte() % 8,
                                any(), 1 + choices.byte() % 70};
        boxes.push_back(box);
        for (int64_t at = 0; at < box.planes * box.lines * box.width; ++at) {
            const auto plane = static_cast<uint64_t>(at / (box.lines * box.width)),
                       line = static_cast<uint64_t>(at / box.width % box.lines);
            const uint64_t counter =
                static_cast<uint64_t>(box.first) + plane * static_cast<uint64_t>(box.plane_step) +
                line * static_cast<uint64_t>(box.line_step) + static_cast<uint64_t>(at % box.width);
            wanted.push_back(plain_number_of(keys[static_cast<size_t>(i)], counter));
        }
    }
    const auto kept_boxes = exactly(boxes.data(), boxes.size());
    for (const bool fused : {false, true}) {
        for (const ColourLoops* loops : colour_loops(fused)) {
            const std::unique_ptr<float[]> found(new float[wanted.size()]);
            float* out = found.get();
            for (size_t i = 0; i < boxes.size(); ++i) {
                loops->box_normals(keys[i], boxes[i], out);
                out += boxes[i].planes * boxes[i].lines * boxes[i].width;
            }
            require(std::equal(wanted.begin(), wanted.end(), found.get()),
                    "a number of a counter differs");
        }
    }
    static Pool pool(1, "auto");
    const std::unique_ptr<float[]> found(new float[wanted.size()]);
    const auto of_boxes = box_normals_job(kept_keys.get(), kept_boxes.get(), count, found.get());
    pool.run(*of_boxes);
    of_boxes->wait();
    require(std::equal(wanted.begin(), wanted.end(), found.get()), "a job's boxes differ");
    const Pixels made = in_place(before, offset, [&](uint8_t* pixels) {
        const auto job = noise_job({pixels, count, shape, channels}, table);
        pool.run(*job);
        job->wait();
        require(job->take_failures().empty(), "a sound table failed");
    });
    require(made == plain, "a job differs from the plain path");
    const std::unique_ptr<float[]> numbers(new float[values]);
    const auto job = normals_job(kept_keys.get(), 1, static_cast<int64_t>(values), numbers.get());
    pool.run(*job);
    job->wait();
    require(numbers[values - 1] == plain_number(keys[0], values - 1), "a job's numbers differ");
    return 0;
}
