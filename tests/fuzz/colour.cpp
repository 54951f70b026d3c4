// Fuzz target: the steps of colour. The bytes choose one to three images of 1 to 65,500 pixels a
// side (fewer rows where they would be too large to be quick), grey or coloured, so that rows are
// of any number of bytes; the steps of each, mixtures of chains of steps, or a blur; and their
// numbers, infinite and not numbers among them.
//
// Images lie in heap memory at any offset, and end with it; tables lie in heap memory of exactly
// their size. What must hold, besides that memory is in order: every instruction set that runs here
// makes the pixels of the plain path below, which has a value at a time, rounded as theirs are; a
// job of the pool makes the same; and the bytes before the images stay as they are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "choices.hpp"
#include "colour_loops.hpp"
#include "pool.hpp"

namespace {

using namespace fastload;

// Of an image, and values times steps or taps, so that an input takes some milliseconds at the
// most.
constexpr int64_t kMostPixels = 1 << 12, kMostWork = 1 << 15;

uint8_t cut(float x) {
    return static_cast<uint8_t>(std::isnan(x) ? 0 : std::clamp(x, 0.0f, 255.0f));
}

// An image whose channels lie together, a value at a time.
class Plain {
  public:
    Plain(const uint8_t* pixels, Size size, int channels, bool fused)
        : size_(size),
          channels_(channels),
          fused_(fused),
          pixels_(pixels, pixels + int64_t{channels} * size.height * size.width) {}

    void mix(const ColourTable& table, int row) {
        const float* weights = table.weights ? table.weights + row * (1 + table.chains) : nullptr;
        const Pixels before = pixels_;
        std::vector<float> sums(before.size());
        for (size_t i = 0; weights && i < sums.size(); ++i) sums[i] = before[i] * weights[0];
        for (int chain = 0; chain < table.chains; ++chain) {
            pixels_ = before;
            for (int step = 0; step < table.steps; ++step) {
                const int at = (row * table.chains + chain) * table.steps + step;
                if (table.kinds[at] >= 0)
                    run(table, table.kinds[at], table.numbers + at * kColourNumbers);
            }
            for (size_t i = 0; weights && i < sums.size(); ++i)
                sums[i] += pixels_[i] * weights[1 + chain];
        }
        if (weights) std::transform(sums.begin(), sums.end(), pixels_.begin(), cut);
    }

    void blur(const BlurTable& table, int row, int count) {
        if (table.rows && !table.rows[row]) return;
        const auto mirrored = [](int at, int length) {
            return at < 0 ? -at : at < length ? at : 2 * (length - 1) - at;
        };
        const auto sum = [&](const float* weights, int taps, auto value) {
            float total = 0.0f;
            for (int tap = 0; tap < taps; ++tap) {
                const float weight = weights[tap * count + row];
                if (weight != 0.0f) total = mul_add(value(tap), weight, total);
            }
            return total;
        };
        std::vector<float> down(pixels_.size());
        for_each([&](int y, int x, int c) {
            down[index(y, x, c)] = sum(table.down, table.down_taps, [&](int tap) -> float {
                return pixels_[index(mirrored(y + tap - table.down_taps / 2, size_.height), x, c)];
            });
        });
        for_each([&](int y, int x, int c) {
            const float total = sum(table.across, table.across_taps, [&](int tap) {
                return down[index(y, mirrored(x + tap - table.across_taps / 2, size_.width), c)];
            });
            pixels_[index(y, x, c)] = cut(std::nearbyint(total));
        });
    }

    const Pixels& pixels() const { return pixels_; }

  private:
    float mul_add(float a, float b, float c) const {
        return fused_ ? std::fma(a, b, c) : a * b + c;
    }

    size_t index(int y, int x, int channel) const {
        return (static_cast<size_t>(y) * size_.width + x) * channels_ + channel;
    }

    template <typename Function>
    void for_each(Function function) const {
        for (int y = 0; y < size_.height; ++y) {
            for (int x = 0; x < size_.width; ++x) {
                for (int channel = 0; channel < channels_; ++channel) function(y, x, channel);
            }
        }
    }

    // Each value from itself, or from the pixel that it is of.
    template <typename Function>
    void values(Function function) {
        for (uint8_t& value : pixels_) value = function(value);
    }
    template <typename Function>
    void coloured(Function function) {
        if (channels_ == 1) return;
        for (size_t at = 0; at < pixels_.size(); at += 3) function(&pixels_[at]);
    }
    // The values of each channel by themselves: a table of them, or none.
    template <typename Function>
    void by_counts(Function table_of) {
        for (int channel = 0; channel < channels_; ++channel) {
            int64_t counts[256] = {};
            for (size_t at = channel; at < pixels_.size(); at += channels_) ++counts[pixels_[at]];
            uint8_t table[256];
            if (!table_of(counts, table)) continue;
            for (size_t at = channel; at < pixels_.size(); at += channels_)
                pixels_[at] = table[pixels_[at]];
        }
    }

    float grey(const uint8_t* pixel) const {
        return std::trunc(mul_add(pixel[2], 0.114f, mul_add(pixel[1], 0.587f, pixel[0] * 0.2989f)));
    }

    void run(const ColourTable& table, int kind, const float* numbers) {
        const float first = numbers[0], second = numbers[1];
        switch (static_cast<ColourKind>(kind)) {
            case ColourKind::brightness:
                return values([&](uint8_t value) { return cut(value * first); });
            case ColourKind::contrast: return contrast(first, second);
            case ColourKind::saturation:
                return coloured([&](uint8_t* pixel) {
                    const float mean = grey(pixel);
                    for (int c = 0; c < 3; ++c)
                        pixel[c] = cut(mul_add(mean, second, pixel[c] * first));
                });
            case ColourKind::hue: return coloured([&](uint8_t* pixel) { turn(pixel, first); });
            case ColourKind::posterize:
                return values(
                    [&](uint8_t value) { return static_cast<uint8_t>(value & cut(first)); });
            case ColourKind::solarize:
                return values([&](uint8_t value) {
                    return static_cast<uint8_t>(value >= first ? 255 - value : value);
                });
            case ColourKind::sharpness: return sharpness(first);
            case ColourKind::autocontrast:
                return by_counts([](const int64_t* counts, uint8_t* made) {
                    int low = 0, high = 255;
                    while (counts[low] == 0) ++low;
                    while (counts[high] == 0) --high;
                    const float scale = static_cast<float>(high - low) * (1.0f / 255.0f);
                    for (int value = low; value <= high && low < high; ++value)
                        made[value] = cut(static_cast<float>(value - low) / scale);
                    return low < high;
                });
            case ColourKind::equalize:
                return by_counts([&](const int64_t* counts, uint8_t* made) {
                    int high = 255;
                    while (counts[high] == 0) --high;
                    const int64_t all = int64_t{size_.height} * size_.width,
                                  step = (all - counts[high]) / 255;
                    int64_t position = step / 2;
                    for (int value = 0; value < 256 && step > 0; ++value) {
                        made[value] = static_cast<uint8_t>(std::min<int64_t>(position / step, 255));
                        position += counts[value];
                    }
                    return step > 0;
                });
            case ColourKind::affine: return move(table, numbers);
            case ColourKind::move_bilinear: return move_as_pillow(table, numbers, false);
            case ColourKind::move_bicubic: return move_as_pillow(table, numbers, true);
            case ColourKind::move_nearest: return move_nearest(table, numbers);
            case ColourKind::cut_out: return cut_out(numbers);
            case ColourKind::solarize_add:
                return values([&](uint8_t value) {
                    return value < 128 ? cut(static_cast<float>(value) + first) : value;
                });
            case ColourKind::grey:
                return coloured([&](uint8_t* pixel) { std::memset(pixel, cut(grey(pixel)), 3); });
            case ColourKind::permute:
                return coloured([&](uint8_t* pixel) {
                    const int red = cut(first) % 3, green = cut(second) % 3;
                    const uint8_t made[3] = {pixel[red], pixel[green],
                                             pixel[std::clamp(3 - red - green, 0, 2)]};
                    std::memcpy(pixel, made, 3);
                });
            case ColourKind::hsv:
                if (channels_ == 1)
                    return values([&](uint8_t value) { return cut(value + whole(numbers[5])); });
                return coloured([&](uint8_t* pixel) { change_hsv(pixel, numbers); });
            case ColourKind::linear:
                return values([&](uint8_t value) { return cut(value * first + second); });
            case ColourKind::gamma:
                return values([&](uint8_t value) {
                    const double made = std::pow(value * (1.0 / 255.0), double{first}) * 255.0;
                    return static_cast<uint8_t>(std::isnan(made) ? 0.0
                                                                 : std::clamp(made, 0.0, 255.0));
                });
        }
    }

    // What is added to whole numbers.
    static float whole(float number) {
        return std::fabs(number) < 256.0f ? std::trunc(number) : 0.0f;
    }

    // By OpenCV's formulas: bytes to HSV with divisors of 12 bits, and back in floating point.
    static void change_hsv(uint8_t* pixel, const float* gains) {
        const int r = pixel[0], g = pixel[1], b = pixel[2], most = std::max({r, g, b}),
                  difference = most - std::min({r, g, b});
        const auto share = [](int part, int number, int whole) {
            const long divisor = whole == 0 ? 0 : std::lrint(number * 4096.0 / whole);
            return static_cast<int>((part * divisor + 2048) >> 12);
        };
        const auto gained = [](int number, float gain) {
            const double made = number * static_cast<double>(gain);
            return static_cast<int>(std::isnan(made) ? 0.0 : std::clamp(made, 0.0, 65025.0));
        };
        int hue = share(most == r   ? g - b
                        : most == g ? b - r + 2 * difference
                                    : r - g + 4 * difference,
                        30, difference);
        if (hue < 0) hue += 180;
        const double turned = std::fmod(hue * static_cast<double>(gains[0]), 180.0);
        hue = turned >= 0.0 ? static_cast<int>(turned) : 0;  // nor what is no number
        hue = (hue + static_cast<int>(whole(gains[3])) + 360) % 180;
        const auto value =
            static_cast<float>(cut(static_cast<float>(gained(most, gains[2])) + whole(gains[5])));
        const int part = share(difference, 255, most);
        // Of a factor below 0 the amount counts, and grey pixels are coloured, too.
        const float strength =
                        static_cast<float>(gained(part, std::fabs(gains[1]))) + whole(gains[4]),
                    saturation =
                        part > 0 || gains[1] < 0.0f ? cut(strength) * (1.0f / 255.0f) : 0.0f;
        for (int c = 0; c < 3; ++c) {
            const float k = std::fmod(
                static_cast<float>(hue) * (1.0f / 30.0f) + static_cast<float>(5 - 2 * c), 6.0f);
            const float weight = std::clamp(std::min(k, 4.0f - k), 0.0f, 1.0f);
            pixel[c] = cut(std::nearbyint(value - (value * saturation) * weight));
        }
    }

    void contrast(float factor, float rest) {
        int64_t total = 0;
        for (size_t at = 0; at < pixels_.size(); at += channels_)
            total += channels_ == 3 ? static_cast<int>(grey(&pixels_[at])) : pixels_[at];
        const double all = double{1} * size_.height * size_.width;
        const auto mean = static_cast<float>(static_cast<double>(total) / all);
        values([&](uint8_t value) { return cut(mul_add(mean, rest, value * factor)); });
    }

    void turn(uint8_t* pixel, float shift) const {
        constexpr float kOf255 = 1.0f / 255.0f;
        float of[3];
        for (int c = 0; c < 3; ++c) of[c] = pixel[c] * kOf255;
        const float largest = *std::max_element(of, of + 3),
                    chroma = largest - *std::min_element(of, of + 3),
                    divisor = std::max(chroma, 1e-12f);
        const int top = static_cast<int>(std::max_element(of, of + 3) - of);  // the first of them
        const float between = (of[(top + 1) % 3] - of[(top + 2) % 3]) / divisor;
        const float hue = (top == 0 ? between : between + 2.0f * static_cast<float>(top)) + shift;
        for (int c = 0; c < 3; ++c) {
            float k = hue + static_cast<float>(5 - 2 * c);
            k = mul_add(std::floor(k / 6.0f), -6.0f, k);
            const float weight =
                std::isnan(k) ? 0.0f : std::clamp(std::min(k, 4.0f - k), 0.0f, 1.0f);
            pixel[c] = cut(mul_add(-weight, chroma, largest) * 255.999f);
        }
    }

    void sharpness(float rest) {
        const Pixels before = pixels_;
        for_each([&](int y, int x, int c) {
            if (y == 0 || x == 0 || y == size_.height - 1 || x == size_.width - 1) return;
            int sum = 4 * before[index(y, x, c)];
            for (int i = 0; i < 9; ++i) sum += before[index(y + i / 3 - 1, x + i % 3 - 1, c)];
            const float value = before[index(y, x, c)],
                        smooth = std::nearbyint(static_cast<float>(sum) / 13.0f);
            pixels_[index(y, x, c)] = cut(mul_add(smooth - value, rest, value));
        });
    }

    void move(const ColourTable& table, const float* m) {
        const Pixels before = pixels_;
        const float height = static_cast<float>(size_.height),
                    width = static_cast<float>(size_.width);
        const auto from = [&](float y, float x, int c, bool& in) -> float {
            in = y >= 0.0f && y < height && x >= 0.0f && x < width;
            return in ? before[index(static_cast<int>(y), static_cast<int>(x), c)] : 0.0f;
        };
        for_each([&](int row, int column, int c) {
            const float y = static_cast<float>(row) - (height * 0.5f - 0.5f),
                        x = static_cast<float>(column) - (width * 0.5f - 0.5f);
            const float in_x = mul_add(m[0] * x + m[1] * y + m[2] + 1.0f, width * 0.5f, -0.5f),
                        in_y = mul_add(m[3] * x + m[4] * y + m[5] + 1.0f, height * 0.5f, -0.5f);
            float value = 0.0f, share = 0.0f;
            bool in = false;
            if (table.bilinear) {
                const float left = std::floor(in_x), top = std::floor(in_y);
                const float right = in_x - left, bottom = in_y - top;
                const float across[2] = {1.0f - right, right}, down[2] = {1.0f - bottom, bottom};
                for (int i = 0; i < 4; ++i) {
                    const float weight = down[i / 2] * across[i % 2],
                                pixel = from(top + static_cast<float>(i / 2),
                                             left + static_cast<float>(i % 2), c, in);
                    value = i == 0 ? pixel * weight : mul_add(pixel, weight, value);
                    const float one = in ? 1.0f : 0.0f;
                    share = i == 0 ? one * weight : mul_add(one, weight, share);
                }
                if (table.fills) value = (value - table.fill[c]) * share + table.fill[c];
            } else {
                value = from(std::nearbyint(in_y), std::nearbyint(in_x), c, in);
                if (table.fills && !in) value = table.fill[c];
            }
            // Of a fill beyond bytes, the lowest bits.
            value = std::nearbyint(value);
            pixels_[index(row, column, c)] =
                static_cast<uint8_t>(std::fabs(value) < 1e9f ? static_cast<int32_t>(value) : 0);
        });
    }

    void move_as_pillow(const ColourTable& table, const float* m, bool cubic) {
        const Pixels before = pixels_;
        const auto height = static_cast<float>(size_.height),
                   width = static_cast<float>(size_.width);
        const auto from = [&](float y, float x, int c) -> float {
            return before[index(static_cast<int>(std::clamp(y, 0.0f, height - 1.0f)),
                                static_cast<int>(std::clamp(x, 0.0f, width - 1.0f)), c)];
        };
        const auto along = [&](const float* v, float part) {
            if (!cubic) return v[1] + (v[2] - v[1]) * part;
            const float square = 2.0f * (v[0] - v[1]) + v[2] - v[3],
                        cube = v[1] - v[0] - v[2] + v[3];
            return v[1] + part * ((v[2] - v[0]) + part * (square + part * cube));
        };
        for_each([&](int row, int column, int c) {
            const float y = static_cast<float>(row) + 0.5f, x = static_cast<float>(column) + 0.5f;
            const float in_x = m[0] * x + m[1] * y + m[2], in_y = m[3] * x + m[4] * y + m[5];
            if (!(in_x >= 0.0f && in_x < width && in_y >= 0.0f && in_y < height)) {
                pixels_[index(row, column, c)] = table.fills ? cut(table.fill[c]) : uint8_t{0};
                return;
            }
            const float left = std::floor(in_x - 0.5f), top = std::floor(in_y - 0.5f);
            float lines[4];
            for (int i = 0; i < 4; ++i) {
                float values[4];
                for (int k = 0; k < 4; ++k)
                    values[k] =
                        from(top + static_cast<float>(i - 1), left + static_cast<float>(k - 1), c);
                lines[i] = along(values, in_x - 0.5f - left);
            }
            pixels_[index(row, column, c)] = cut(along(lines, in_y - 0.5f - top));
        });
    }

    void move_nearest(const ColourTable& table, const float* numbers) {
        const Pixels before = pixels_;
        double m[6];  // sums of whole numbers below 2^53
        for (int i = 0; i < 6; ++i) {
            m[i] = std::floor(double{numbers[i] * 65536.0f});
            if (!(std::fabs(m[i]) < 0x1p35)) m[i] = -0x1p35;
        }
        for_each([&](int row, int column, int c) {
            const auto in = [&](const double* line) {
                return std::floor((line[0] * column + line[1] * row + line[2]) / 65536.0);
            };
            const double x = in(m), y = in(m + 3);
            const bool inside = x >= 0.0 && x < size_.width && y >= 0.0 && y < size_.height;
            pixels_[index(row, column, c)] =
                inside ? before[index(static_cast<int>(y), static_cast<int>(x), c)]
                       : cut(table.fills ? table.fill[c] : 0.0f);
        });
    }

    void cut_out(const float* edges) {
        for_each([&](int row, int column, int c) {
            const auto y = static_cast<float>(row), x = static_cast<float>(column);
            if (x >= edges[0] && x <= edges[2] && y >= edges[1] && y <= edges[3])
                pixels_[index(row, column, c)] = cut(edges[4]);
        });
    }

    const Size size_;
    const int channels_;
    const bool fused_;
    Pixels pixels_;
};

// As the operations make them, or of any kind.
float number(Choices& choices, int kind) {
    const int how = choices.byte();
    if (how < 8) {
        const uint32_t bits = choices.bits();
        float any;
        std::memcpy(&any, &bits, sizeof any);
        return any;
    }
    if (how < 24) return static_cast<float>(choices.byte());
    const auto uniform = static_cast<float>(choices.uniform());
    return kind == static_cast<int>(ColourKind::affine) ? 4.0f * uniform - 2.0f
                                                        : 3.0f * uniform - 1.0f;
}

// Images and what is done to them, with every array in memory of exactly its size.
class Input {
  public:
    explicit Input(Choices& choices) {
        const int bits = choices.byte();
        channels = bits & 1 ? 3 : 1;
        blurs = (bits & 2) != 0;
        offset = static_cast<size_t>(choices.byte() % 65);
        size = choices.size(kMostPixels);
        const int64_t values = int64_t{channels} * size.height * size.width;
        most_ = static_cast<int>(std::max<int64_t>(kMostWork / values, 1));
        count = 1 + bits / 4 % std::min(most_, 3);
        most_ = std::max(most_ / count, 1);
        blurs ? choose_blur(choices) : choose_steps(choices);
        pixels = noise(static_cast<size_t>(count * values), choices.byte());
        const int flat = choices.byte();  // few values, which are rare in noise
        if (flat & 1) {
            for (uint8_t& value : pixels) value = static_cast<uint8_t>(value % (1 + flat / 2));
        }
        if (flat & 128) std::fill(pixels.begin(), pixels.begin() + values / 2, pixels[0]);
    }

    int channels, count;
    bool blurs;
    size_t offset;  // of the images in their memory
    Size size;
    Pixels pixels;
    ColourTable table;
    BlurTable blur;

  private:
    template <typename T>
    const T* kept(const std::vector<T>& values) {
        auto made = std::make_shared<std::unique_ptr<T[]>>(exactly(values.data(), values.size()));
        kept_.push_back(made);
        return made->get();
    }

    void choose_steps(Choices& choices) {
        const int shape = choices.byte();
        const bool mixes = (shape & 128) != 0;
        table.chains = mixes ? 1 + shape / 8 % std::min(most_, 3) : 1;
        table.steps = shape % std::min(most_ / table.chains + 1, 5);
        const int rows = count * table.chains;
        std::vector<int32_t> kinds;
        std::vector<float> numbers, weights;
        for (int i = 0; i < rows * table.steps; ++i) {
            kinds.push_back(choices.byte() % (kColourKinds + 1) - 1);
            for (int k = 0; k < kColourNumbers; ++k)
                numbers.push_back(number(choices, kinds.back()));
        }
        for (int i = 0; mixes && i < count * (1 + table.chains); ++i)
            weights.push_back(number(choices, -1));
        table.kinds = kept(kinds);
        table.numbers = kept(numbers);
        if (mixes) table.weights = kept(weights);
        const int options = choices.byte();
        table.bilinear = (options & 1) != 0;
        table.fills = (options & 2) != 0;
        for (float& value : table.fill) value = number(choices, -1);
    }

    void choose_blur(Choices& choices) {
        const auto taps = [&](int length) {
            return 1 + 2 * (choices.byte() % std::min({length, most_ / 4 + 1, 12}));
        };
        blur.down_taps = taps(size.height);
        blur.across_taps = taps(size.width);
        std::vector<float> down, across;
        for (int i = 0; i < blur.down_taps * count; ++i) down.push_back(number(choices, -1));
        for (int i = 0; i < blur.across_taps * count; ++i) across.push_back(number(choices, -1));
        blur.down = kept(down);
        blur.across = kept(across);
        const int rows = choices.byte();
        if (rows & 1) return;
        auto made = std::make_shared<std::unique_ptr<bool[]>>(new bool[count]);
        for (int i = 0; i < count; ++i) (*made)[i] = (rows >> (1 + i) & 1) != 0;
        kept_.push_back(made);
        blur.rows = made->get();
    }

    std::vector<std::shared_ptr<void>> kept_;
    int most_;  // steps or taps of an image
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Choices choices(data, size);
    const Input input(choices);
    const size_t bytes = input.pixels.size() / static_cast<size_t>(input.count);

    Pixels plain[2];  // rounded one by one, and together
    for (const bool fused : {false, true}) {
        for (int row = 0; row < input.count; ++row) {
            Plain image(input.pixels.data() + bytes * static_cast<size_t>(row), input.size,
                        input.channels, fused);
            input.blurs ? image.blur(input.blur, row, input.count) : image.mix(input.table, row);
            plain[fused].insert(plain[fused].end(), image.pixels().begin(), image.pixels().end());
        }
    }
    for (const bool fused : {false, true}) {
        for (const ColourLoops* loops : colour_loops(fused)) {
            const Pixels made = in_place(input.pixels, input.offset, [&](uint8_t* pixels) {
                for (int row = 0; row < input.count; ++row, pixels += bytes) {
                    // New memory of the size that is promised, so that a sanitizer sees what is
                    // beyond.
                    std::vector<uint8_t> scratch;
                    std::vector<float> floats;
                    const ColourMemory memory = {scratch, floats};
                    if (!input.blurs) {
                        recolour_image(*loops, input.table, row, input.size, input.channels, pixels,
                                       memory);
                    } else if (!input.blur.rows || input.blur.rows[row]) {
                        blur_image(*loops, input.blur, row, input.count, input.size, input.channels,
                                   pixels, memory);
                    }
                }
            });
            require(made == plain[fused], "an instruction set differs from the plain path");
        }
    }
    static Pool pool(1, "auto");
    for (const bool fused : {false, can_fuse_colour()}) {
        const Pixels made = in_place(input.pixels, input.offset, [&](uint8_t* pixels) {
            const ColourImages images = {pixels, input.count, input.size, input.channels};
            const auto job = input.blurs ? blur_job(images, input.blur, fused)
                                         : colour_job(images, input.table, fused);
            pool.run(*job);
            job->wait();
            require(job->take_failures().empty(), "a sound table failed");
        });
        require(made == plain[fused], "a job differs from the plain path");
    }
    return 0;
}
