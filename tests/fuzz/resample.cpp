// Fuzz target: everything after the decoders. The bytes choose an image of 1 to 65,500 pixels a
// side (fewer rows where it would be too large to be quick), a geometry, and how to get from one to
// the other:
//
// - rows of pixels through the resampler, also of images reduced in decoding;
// - decoded images through the gather of the cache;
// - a PNG made here, turned by EXIF, as two views of one decoding;
// - geometries that the core makes itself from random numbers, and hostile ones.
//
// Rows, images and outputs lie in heap memory of exactly the size that they are promised to have.
// What must hold, besides that memory is in order: all instruction sets that run here make the same
// pixels; the resampler's are those of plain loops over the weights, which touch no pixel beside
// them; and no instruction set, whether it runs here or not, is asked for weights beyond a row and
// its slack.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "choices.hpp"
#include "jobs.hpp"

namespace {

using namespace fastload;

constexpr int64_t kMostPixels = 1 << 17;  // of an image, so that an input takes a millisecond
constexpr int kMostWork = 1 << 20;        // pixels, and weights times rows

// Of the grid that a box is resampled to: up to a million.
int grid(Choices& choices) {
    const int kind = choices.byte();
    return kind < 255 ? (kind < 192 ? 1 + choices.byte() : 1 + choices.word() % 4096)
                      : 1 + 16 * choices.word();
}

int start(Choices& choices) {
    const int kind = choices.byte();
    return kind < 128   ? choices.byte() - 64
           : kind < 250 ? choices.word() % 4096 - 256
                        : 32 * choices.word() - (1 << 20);
}

std::vector<const Kernels*> all_kernels() {
    std::vector<const Kernels*> found;
    for (const char* name : {"plain", "sse4.1", "avx2", "avx512", "neon"}) {
        if (const Kernels* kernels = find_kernels(name)) found.push_back(kernels);
    }
    return found;
}

// Small, or, for one input in sixteen, some lines of up to 65,536 pixels.
Size window_size(Choices& choices) {
    const int height = choices.byte(), width = choices.byte();
    if (height < 240) return {1 + height % 40, 1 + width % 70};
    const int length = 1 + choices.word(), lines = 1 + height % 3;
    return width % 2 == 0 ? Size{lines, length} : Size{length, lines};
}

ResampleOptions resample_options(Choices& choices) {
    ResampleOptions options;
    const int bits = choices.byte();
    options.filter = static_cast<Filter>(bits >= 224 ? 4 : bits & 3);
    options.antialias = (bits & 4) == 0;
    options.padding = static_cast<Padding>(bits >> 3 & 3);
    for (uint8_t& value : options.fill) value = static_cast<uint8_t>(choices.byte());
    return options;
}

// A box somewhere in the image; of the whole of it for one input in four.
Geometry inside(Choices& choices, Size image, Size out) {
    Geometry geometry;
    Box& box = geometry.box;
    box = {0, 0, image.height, image.width};
    if (choices.byte() < 192) {
        box.top = choices.word() % image.height;
        box.left = choices.word() % image.width;
        box.height = 1 + choices.word() % (image.height - box.top);
        box.width = 1 + choices.word() % (image.width - box.left);
    }
    const int bits = choices.byte();
    geometry.size = {grid(choices), grid(choices)};
    if ((bits & 1) != 0) geometry.size.height = box.height;
    if ((bits & 2) != 0) geometry.size.width = box.width;
    geometry.window = {start(choices), start(choices), out.height, out.width};
    if ((bits & 4) != 0)
        geometry.window.top = geometry.size.height - out.height / 2;  // over the edge
    if ((bits & 8) != 0) geometry.window.left = geometry.size.width - out.width / 2;
    geometry.mirror = (bits & 16) != 0;
    geometry.upside_down = (bits & 32) != 0;
    geometry.bicubic = (bits & 64) != 0;
    const int before = choices.byte();
    geometry.mirror_first = (before & 1) != 0;
    geometry.upside_down_first = (before & 2) != 0;
    return geometry;
}

// Numbers of all sizes, nearly always refused.
Geometry hostile(Choices& choices, Size out) {
    const auto box = [&] {
        return Box{choices.any(), choices.any(), choices.any(), choices.any()};
    };
    Geometry geometry;
    geometry.box = box();
    geometry.size = {choices.any(), choices.any()};
    geometry.window = box();
    if (choices.flag()) geometry.window.height = out.height;
    if (choices.flag()) geometry.window.width = out.width;
    geometry.mirror_first = choices.flag();
    geometry.upside_down_first = choices.flag();
    return geometry;
}

// Geometries as they come from Python, with all that they point at.
class Planned {
  public:
    Planned(Choices& choices, Size image, Size out) {
        for (double& uniform : uniforms_) uniform = choices.uniform();
        flips_[0] = choices.flag();
        flips_[1] = choices.flag();
        bicubic_ = choices.flag();
        switch (choices.byte() % 6) {
            case 0: source = whole_images(flips_); break;
            case 1: {
                RandomResizedCropPlan plan;
                plan.size = out;
                plan.scale_low = 2.0 * choices.uniform();
                plan.scale_high = plan.scale_low + choices.uniform();
                plan.ratio_low = 0.001 + choices.uniform();
                plan.ratio_high = plan.ratio_low + 100.0 * choices.uniform();
                plan.log_ratio_low = 14.0 * choices.uniform() - 7.0;  // need not fit the ratios
                plan.log_ratio_high = plan.log_ratio_low + 7.0 * choices.uniform();
                source = random_resized_crops(uniforms_, flips_, plan,
                                              choices.flag() ? &bicubic_ : nullptr);
                break;
            }
            case 2: {
                ResizePlan plan;
                if (choices.flag()) plan.size = {grid(choices), grid(choices)};
                if (choices.flag()) plan.shorter = grid(choices);
                if (plan.shorter == 0 || choices.flag()) plan.longest = grid(choices);
                plan.crop = choices.flag() ? out : Size{};
                source = resized_images(flips_, plan);
                break;
            }
            case 3: {
                const auto size = [&] { return Size{choices.word(), choices.word()}; };
                source = padded_crops(uniforms_, flips_, {out, size(), size()});
                break;
            }
            case 4: give(hostile(choices, out)); break;
            default: give(inside(choices, image, out));
        }
    }
    Planned(const Planned&) = delete;
    Planned& operator=(const Planned&) = delete;

    GeometrySource source;

  private:
    void give(const Geometry& geometry) {
        const auto put = [](int32_t* to, const Box& box) {
            const int32_t values[4] = {box.top, box.left, box.height, box.width};
            std::copy(values, values + 4, to);
        };
        put(box_, geometry.box);
        put(window_, geometry.window);
        size_[0] = geometry.size.height;
        size_[1] = geometry.size.width;
        flips_[0] = geometry.mirror;
        flips_[1] = geometry.upside_down;
        flips_first_[0] = geometry.mirror_first;
        flips_first_[1] = geometry.upside_down_first;
        bicubic_ = geometry.bicubic;
        source = given_geometry(box_, size_, window_, flips_, &bicubic_, flips_first_);
    }

    double uniforms_[kResizedCropUniforms];
    bool flips_[2], flips_first_[2], bicubic_;
    int32_t box_[4], size_[2], window_[4];
};

bool is_quick(const Geometry& geometry, Size out) {
    const int64_t work = int64_t{geometry.box.height} * std::max(out.width, geometry.box.width / 4);
    const int grid = std::max(geometry.size.height, geometry.size.width);
    if (grid > 8192 && grid % 64 != 0)
        return false;  // all of a grid's weights are made: one in 64 of the large ones
    // A row of weights for each column of the output, those that repeat the last one included: each
    // instruction set keeps its own.
    return work <= kMostWork && int64_t{out.height} * geometry.box.height <= kMostWork &&
           int64_t{out.width} * geometry.box.width <= 16 * kMostWork;
}

// What is asked of an axis; as Resampler::begin asks it where nothing was reduced.
AxisRequest axis(int length, int output, int window_start, int window_length, bool mirror,
                 bool mirror_first) {
    AxisRequest request{length, output, window_start, window_length, mirror};
    request.extent = length;
    request.mirror_first = mirror_first;
    return request;
}

// The same, but nearest pixels of an axis that was mirrored before its resize are made of the
// mirrored axis, not mirrored before: its window begins at the other end, and is mirrored back.
Taps plain_taps(const AxisRequest& request, const ResampleOptions& options) {
    Taps taps;
    taps.build(request, options);
    if (!request.mirror_first || !taps.copies) return taps;
    AxisRequest turned = request;
    turned.mirror_first = false;
    turned.mirror = !request.mirror;
    turned.window_start = request.output - request.window_start - request.window_length;
    taps.build(turned, options);
    // The last input in use is the first now.
    for (int& first : taps.first) first = taps.input_stop - 1 - taps.input_start - first;
    return taps;
}

uint8_t rounded(int64_t sum, int precision) {
    return static_cast<uint8_t>(std::clamp<int64_t>(sum >> precision, 0, 255));
}

// The same by plain loops. `row(y)` is row y of the part of the box that the axes need, RGBX.
template <typename Function>
Pixels by_plain_loops(const Geometry& geometry, ResampleOptions options, Function row) {
    if (geometry.bicubic && options.filter == Filter::bilinear) options.filter = Filter::bicubic;
    const Box& window = geometry.window;
    const Taps columns = plain_taps(axis(geometry.box.width, geometry.size.width, window.left,
                                         window.width, geometry.mirror, geometry.mirror_first),
                                    options);
    const Taps rows =
        plain_taps(axis(geometry.box.height, geometry.size.height, window.top, window.height,
                        geometry.upside_down, geometry.upside_down_first),
                   options);
    Pixels out;
    for (int i = 0; i < window.height * window.width; ++i)
        out.insert(out.end(), options.fill, options.fill + 3);
    if (columns.count == 0 || rows.count == 0) return out;
    const auto horizontal = [&](int y, int x, int channel) -> uint8_t {
        const uint8_t* from = row(y) + 4 * int64_t{columns.first[x]} + channel;
        if (columns.copies) return *from;
        int64_t sum = int64_t{1} << (columns.precision - 1);
        for (int k = 0; k < columns.length[x]; ++k)
            sum += int64_t{columns.at(x)[k]} * from[4 * int64_t{k}];
        return rounded(sum, columns.precision);
    };
    for (int y = 0; y < rows.count; ++y) {
        for (int i = 0; i < 3 * columns.count; ++i) {
            const int x = i / 3, channel = i % 3;
            int64_t sum = int64_t{1} << (rows.precision - 1);
            for (int k = 0; !rows.copies && k < rows.length[y]; ++k) {
                sum += int64_t{rows.at(y)[k]} * horizontal(rows.first[y] + k, x, channel);
            }
            const uint8_t value =
                rows.copies ? horizontal(rows.first[y], x, channel) : rounded(sum, rows.precision);
            out[static_cast<size_t>(3 * ((rows.lead + y) * window.width + columns.lead + x) +
                                    channel)] = value;
        }
    }
    return out;
}

// No instruction set may be asked for more than a row and its slack: they read `width` pixels, and
// four at least.
void check_reach(const AxisRequest& request, const ResampleOptions& options) {
    Taps taps;
    taps.build(request, options);
    taps.keep_inside();
    for (int i = 0; i < taps.count; ++i) {
        const int read = taps.copies ? 1 : std::max(taps.width, 4);
        require(taps.first[i] >= 0 && 4 * (taps.first[i] + read) <= 4 * taps.inputs() + kRowSlack,
                "a position of the output reads beyond its row and the slack");
        require(taps.length[i] <= taps.width,
                "a position has more weights than there is place for");
    }
}

void resample_rows(Choices& choices) {
    const Size image = choices.size(kMostPixels), out = window_size(choices);
    const ResampleOptions options = resample_options(choices);
    const int reduction = choices.byte(), seed = choices.byte();
    const Planned planned(choices, image, out);
    Geometry geometry;
    if (!resolve(planned.source, 0, image, out, geometry).ok() || !is_quick(geometry, out)) return;
    // As decode_image reduces images and turns them.
    int shift = reduction & 3;
    while (shift > 0 && (geometry.box.height >> shift < geometry.size.height ||
                         geometry.box.width >> shift < geometry.size.width)) {
        --shift;
    }
    const int rest = (1 << shift) - 1;
    const Size lead = {reduction & 4 ? -image.height & rest : 0,
                       reduction & 8 ? -image.width & rest : 0};
    const Size reduced = {(image.height + rest) >> shift, (image.width + rest) >> shift};

    static std::vector<std::unique_ptr<Resampler>> resamplers;  // kept, like a thread's
    if (resamplers.empty()) {
        for (const Kernels* kernels : all_kernels())
            resamplers.push_back(std::make_unique<Resampler>(*kernels));
    }
    Pixels first;
    for (const auto& one : resamplers) {
        Resampler& resampler = *one;
        resampler.begin(geometry, options, shift, lead);
        const Box needed = resampler.needed();
        require(needed.top >= 0 && needed.left >= 0 && needed.height >= 1 && needed.width >= 1 &&
                    needed.top + needed.height <= reduced.height &&
                    needed.left + needed.width <= reduced.width,
                "rows outside of the image are asked for");
        // Three rows in turn, each with nothing after its slack.
        const size_t row_bytes = 4 * static_cast<size_t>(needed.width);
        const Pixels pixels = noise(3 * row_bytes, seed);
        std::unique_ptr<uint8_t[]> rows[3];
        for (size_t i = 0; i < 3; ++i)
            rows[i] = exactly(pixels.data() + i * row_bytes, row_bytes, kRowSlack);
        for (int y = 0; y < needed.height;) {
            const uint8_t* given[8];
            const int count = std::min(1 + (reduction >> 4) % 8, needed.height - y);
            for (int i = 0; i < count; ++i) given[i] = rows[(y + i) % 3].get();
            resampler.take(given, count);
            y += count;
        }
        const size_t bytes = 3 * static_cast<size_t>(out.height) * static_cast<size_t>(out.width);
        const std::unique_ptr<uint8_t[]> made(new uint8_t[bytes]);
        resampler.finish(made.get());
        const Pixels now(made.get(), made.get() + bytes);
        if (!first.empty()) {
            require(now == first, "the instruction sets differ");
            continue;
        }
        first = now;
        const int64_t work =
            std::max(int64_t{needed.height} * needed.width, int64_t{out.height} * out.width);
        if (shift == 0 && lead.height == 0 && lead.width == 0 && work <= 1 << 14) {
            require(
                now == by_plain_loops(geometry, options, [&](int y) { return rows[y % 3].get(); }),
                "the resampler differs from plain loops");
        }
    }
    if (shift == 0) {
        ResampleOptions used = options;
        if (geometry.bicubic && used.filter == Filter::bilinear) used.filter = Filter::bicubic;
        check_reach(axis(geometry.box.width, geometry.size.width, geometry.window.left, out.width,
                         geometry.mirror, geometry.mirror_first),
                    used);
    }
}

std::vector<std::unique_ptr<Pool>> make_pools() {
    std::vector<std::unique_ptr<Pool>> pools;
    for (const Kernels* kernels : all_kernels())
        pools.push_back(std::make_unique<Pool>(1, kernels->name));
    return pools;
}

void gather(Choices& choices) {
    const Size image = choices.size(kMostPixels), out = window_size(choices);
    const ResampleOptions options = resample_options(choices);
    const int kind = choices.byte(), seed = choices.byte();
    const Planned planned(choices, image, out);
    Geometry geometry;
    if (!resolve(planned.source, 0, image, out, geometry).ok() || !is_quick(geometry, out)) return;
    const bool resamples =
        geometry.box.height != geometry.size.height || geometry.box.width != geometry.size.width;
    const int channels = resamples ? (kind & 1 ? 3 : 1) : 1 + kind % 4;  // resampling takes 1 or 3
    const int count = 1 + kind / 4 % 3;
    const size_t bytes = static_cast<size_t>(image.height) * static_cast<size_t>(image.width) *
                         static_cast<size_t>(channels);
    const Pixels pixels = noise(bytes * static_cast<size_t>(count), seed);
    const auto base = exactly(pixels.data(), pixels.size());
    // The image in front, or at an offset.
    const int64_t index = count - 1, rows[1] = {index};
    std::vector<int64_t> offsets;
    std::vector<int32_t> sizes;
    for (int i = 0; i < count; ++i) {
        offsets.push_back(static_cast<int64_t>(bytes) * i);
        sizes.insert(sizes.end(), {image.height, image.width});
    }
    PixelRows images;
    images.base = base.get();
    images.rows = rows;
    images.size = image;
    images.count = 1;
    if (kind & 64) images.offsets = offsets.data();
    if (kind & 128) images.sizes = sizes.data();

    static const std::vector<std::unique_ptr<Pool>> pools = make_pools();
    const size_t out_bytes = static_cast<size_t>(channels) * static_cast<size_t>(out.height) *
                             static_cast<size_t>(out.width);
    Pixels first;
    for (const auto& pool : pools) {
        const std::unique_ptr<uint8_t[]> made(new uint8_t[out_bytes]);
        const auto job = gather_job(images, {planned.source, options, made.get(), out, channels});
        pool->run(*job);
        job->wait();
        require(job->take_failures().empty(), "a sound geometry failed");
        const Pixels now(made.get(), made.get() + out_bytes);
        require(first.empty() || now == first, "the instruction sets differ in a gather");
        first = now;
    }
}

// A chunk of a PNG, with its checksum (ISO 3309).
void put_chunk(Pixels& file, const char* kind, const Pixels& body) {
    put_u32(file, static_cast<uint32_t>(body.size()));
    const size_t start = file.size();
    file.insert(file.end(), kind, kind + 4);
    file.insert(file.end(), body.begin(), body.end());
    uint32_t crc = ~0u;
    for (size_t i = start; i < file.size(); ++i) {
        crc ^= file[i];
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0u);
    }
    put_u32(file, ~crc);
}

// A PNG whose rows are stored, not compressed (RFC 1950, RFC 1951).
Pixels png(Size size, int channels, int orientation, const Pixels& pixels) {
    Pixels file = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    Pixels header;
    put_u32(header, static_cast<uint32_t>(size.width));
    put_u32(header, static_cast<uint32_t>(size.height));
    header.insert(header.end(), {8, static_cast<uint8_t>(channels == 3 ? 2 : 0), 0, 0, 0});
    put_chunk(file, "IHDR", header);
    put_chunk(file, "eXIf", {'I',
                             'I',
                             42,
                             0,
                             8,
                             0,
                             0,
                             0,
                             1,
                             0,
                             0x12,
                             1,
                             3,
                             0,
                             1,
                             0,
                             0,
                             0,
                             static_cast<uint8_t>(orientation),
                             0,
                             0,
                             0,
                             0,
                             0,
                             0,
                             0});
    Pixels raw;
    const size_t row = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    for (size_t y = 0; y < static_cast<size_t>(size.height); ++y) {
        raw.push_back(0);
        raw.insert(raw.end(), pixels.begin() + static_cast<ptrdiff_t>(y * row),
                   pixels.begin() + static_cast<ptrdiff_t>((y + 1) * row));
    }
    Pixels stream = {0x78, 1};
    uint32_t a = 1, b = 0;
    for (size_t at = 0; at < raw.size();) {
        const size_t length = std::min<size_t>(raw.size() - at, 65535);
        const bool last = at + length == raw.size();
        for (const size_t value : {static_cast<size_t>(last), length & 255, length >> 8,
                                   ~length & 255, ~length >> 8 & 255}) {
            stream.push_back(static_cast<uint8_t>(value));
        }
        for (const size_t stop = at + length; at < stop; ++at) {
            stream.push_back(raw[at]);
            a = (a + raw[at]) % 65521;
            b = (b + a) % 65521;
        }
    }
    put_u32(stream, b << 16 | a);
    put_chunk(file, "IDAT", stream);
    put_chunk(file, "IEND", {});
    return file;
}

void decode_turned(Choices& choices) {
    const Size image = choices.size(kMostPixels);
    const int channels = choices.flag() ? 3 : 1, orientation = 1 + choices.byte() % 8,
              seed = choices.byte();
    const Size upright = orientation >= 5 ? Size{image.width, image.height} : image;
    const Size outs[2] = {window_size(choices), window_size(choices)};
    const ResampleOptions options = resample_options(choices);
    const bool whole = choices.flag();
    const Planned first(choices, upright, outs[0]), second(choices, upright, outs[1]);
    const Planned* const both[2] = {&first, &second};
    for (int i = 0; i < 2; ++i) {
        Geometry geometry;
        if (!resolve(both[i]->source, 0, upright, outs[i], geometry).ok() ||
            !is_quick(geometry, outs[i]))
            return;
    }
    const Pixels pixels =
        noise(static_cast<size_t>(image.height) * static_cast<size_t>(image.width) *
                  static_cast<size_t>(channels),
              seed);
    const Pixels file = png(image, channels, orientation, pixels);

    static DecoderCounts counts;
    static std::vector<std::unique_ptr<Worker>> workers;
    if (workers.empty()) {
        for (const Kernels* kernels : all_kernels())
            workers.push_back(std::make_unique<Worker>(*kernels, counts));
    }
    DecodeOptions asked;
    asked.exif_orientation = true;
    asked.whole = whole;
    Pixels before[2];
    for (const auto& worker : workers) {
        std::unique_ptr<uint8_t[]> made[2];
        std::vector<View> views;
        size_t bytes[2];
        for (int i = 0; i < 2; ++i) {
            bytes[i] = 3 * static_cast<size_t>(outs[i].height) * static_cast<size_t>(outs[i].width);
            made[i].reset(new uint8_t[bytes[i]]);
            views.push_back({both[i]->source, options, made[i].get(), outs[i], 3});
        }
        const Outcome outcome = decode_image(*worker, {file.data(), file.size()}, views, 0, asked);
        worker->decoder.close();
        if (outcome.status == Status::other_format) return;  // built without PNG
        require(outcome.ok(), "a sound PNG is refused");
        for (int i = 0; i < 2; ++i) {
            const Pixels now(made[i].get(), made[i].get() + bytes[i]);
            require(before[i].empty() || now == before[i],
                    "the instruction sets differ in a turned image");
            before[i] = now;
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Choices choices(data, size);
    switch (choices.byte() % 4) {
        case 0:
        case 1: resample_rows(choices); break;
        case 2: gather(choices); break;
        default: decode_turned(choices);
    }
    return 0;
}
