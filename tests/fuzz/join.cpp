// Fuzz target: samples of several images. Two bytes say how many of those after them choose the
// table: samples of one or two pictures, members with their geometries and places on a canvas, or
// without one, maps of any numbers. The rest is the file of an image; members have all of it, or a
// part.
//
// Tables and outputs lie in heap memory of exactly their size. What must hold, besides that memory
// is in order: a table that reaches outside of the canvas is refused, and any other is not; the
// best loops make the pixels of the portable ones; and both those of the plain path below, which
// makes whole members, puts them on a canvas and warps it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

#include "choices.hpp"
#include "jobs.hpp"

namespace {

using namespace fastload;

constexpr int kMostMembers = 4, kMostSide = 40;

struct Places {
    std::vector<int32_t> boxes, sizes, windows, corners, seen;
    std::vector<uint8_t> still;  // no flips
    std::vector<int64_t> offsets = {0};
    std::vector<double> inverse;
    std::vector<uint8_t> flips;
    std::vector<float> weights;
    std::vector<int32_t> rectangles;
    std::vector<uint8_t> masks;
};

template <typename T>
std::unique_ptr<T[]> copy_of(const std::vector<T>& values) {
    return exactly(values.data(), values.size());
}

// From `least` to `most`, or, of some inputs, any number.
int32_t near(Choices& choices, int least, int most) {
    const int kind = choices.byte();
    return kind < 8 ? choices.any() : least + (kind * 7 + choices.byte()) % (most - least + 1);
}

double coefficient(Choices& choices) {
    const int kind = choices.byte();
    if (kind == 0) return std::numeric_limits<double>::quiet_NaN();
    if (kind == 1) return std::numeric_limits<double>::infinity();
    if (kind == 2) return 1e300 * (choices.uniform() - 0.5);
    return 4.0 * choices.uniform() - 2.0;
}

void add_member(Choices& choices, Places& places, Size canvas, Size image) {
    const bool hidden = choices.byte() < 40, fits = choices.byte() < 230;
    const int height = 1 + choices.byte() % kMostSide, width = 1 + choices.byte() % kMostSide;
    int32_t box[4] = {near(choices, 0, image.height - 1), near(choices, 0, image.width - 1),
                      near(choices, 1, image.height), near(choices, 1, image.width)};
    if (fits) {
        box[0] = std::clamp(box[0], 0, image.height - 1);
        box[1] = std::clamp(box[1], 0, image.width - 1);
        box[2] = std::clamp(box[2], 1, image.height - box[0]);
        box[3] = std::clamp(box[3], 1, image.width - box[1]);
    }
    places.boxes.insert(places.boxes.end(), box, box + 4);
    places.sizes.insert(places.sizes.end(), {height, width});
    int32_t corner[2] = {near(choices, 0, canvas.height - 1), near(choices, 0, canvas.width - 1)};
    int32_t window[4] = {near(choices, -2, height), near(choices, -2, width),
                         near(choices, 1, kMostSide), near(choices, 1, kMostSide)};
    if (fits) {
        corner[0] = std::clamp(corner[0], 0, canvas.height - 1);
        corner[1] = std::clamp(corner[1], 0, canvas.width - 1);
        window[2] = std::clamp(window[2], 1, canvas.height - corner[0]);
        window[3] = std::clamp(window[3], 1, canvas.width - corner[1]);
    }
    // A tile that is not shown is as large as its window.
    if (hidden) window[2] = window[3] = 1;
    if (hidden) corner[0] = corner[1] = -1;
    places.windows.insert(places.windows.end(), window, window + 4);
    places.corners.insert(places.corners.end(), corner, corner + 2);
    places.still.insert(places.still.end(), {0, 0});
}

// Whether the table may be used, by its description in jobs.hpp.
bool is_sound(const Places& places, const Size* canvases, Size out, int layers) {
    const auto in = [](Size size, int64_t top, int64_t left, int64_t height, int64_t width) {
        return top >= 0 && left >= 0 && height >= 0 && width >= 0 && top + height <= size.height &&
               left + width <= size.width;
    };
    for (size_t i = 0; i < places.rectangles.size(); i += 4) {
        const int32_t* part = &places.rectangles[i];
        if (!in(out, part[0], part[1], part[2], part[3])) return false;
    }
    for (size_t first = 0; first + 1 < places.offsets.size(); first += static_cast<size_t>(layers))
        if (places.offsets[first] == places.offsets[first + 1]) return false;
    if (canvases[0].height == 0) {
        for (size_t i = 0; i + 1 < places.offsets.size(); ++i)
            if (places.offsets[i + 1] - places.offsets[i] > 1) return false;
        return true;
    }
    for (size_t picture = 0; picture + 1 < places.offsets.size(); ++picture) {
        const Size canvas = canvases[picture % static_cast<size_t>(layers)];
        const int32_t* seen = &places.seen[4 * picture];
        if (!in(canvas, seen[0], seen[1], seen[2], seen[3])) return false;
        for (int64_t i = places.offsets[picture]; i < places.offsets[picture + 1]; ++i) {
            const int32_t* corner = &places.corners[2 * static_cast<size_t>(i)];
            const int32_t* window = &places.windows[4 * static_cast<size_t>(i)];
            if (window[2] < 1 || window[3] < 1) return false;
            const bool shown = corner[0] >= 0;
            if (!in(canvas, shown ? corner[0] : 0, shown ? corner[1] : 0, window[2], window[3]))
                return false;
        }
    }
    return true;
}

struct Input {
    const Places& places;
    JoinTable table;
    std::vector<Bytes> files;
    DecodeOptions options;
};

// What is shown of a member, of this size; false where its image is refused.
bool shown(Worker& worker, const Input& input, int64_t member, Size size, Pixels& out) {
    const JoinTable& table = input.table;
    out.resize(size_t{3} * static_cast<size_t>(size.height) * static_cast<size_t>(size.width));
    View view;
    view.geometries = [&](int, Size image, Geometry& geometry) {
        return table.members(static_cast<int>(member), image, geometry);
    };
    view.resample = table.resample;
    view.out = out.data();
    view.size = size;
    const Outcome outcome =
        decode_image(worker, input.files[static_cast<size_t>(member)], {view}, 0, input.options);
    worker.decoder.close();
    return outcome.ok();
}

// A picture made of the members from `first` to `end` on a canvas.
bool on_canvas(Worker& worker, const Input& input, int64_t picture, Pixels& turned) {
    const JoinTable& table = input.table;
    const CanvasLayer& layer = table.canvas.layers[picture % table.layers];
    const Size canvas = layer.size, size = table.size;
    Pixels paper, tile;
    for (int i = 0; i < canvas.height * canvas.width; ++i)
        paper.insert(paper.end(), table.resample.fill, table.resample.fill + 3);
    for (int64_t member = table.offsets[picture]; member < table.offsets[picture + 1]; ++member) {
        const int32_t *window = &table.canvas.windows[4 * member],
                      *corner = &table.canvas.corners[2 * member];
        if (!shown(worker, input, member, {window[2], window[3]}, tile)) return false;
        for (int y = 0; corner[0] >= 0 && y < window[2]; ++y) {
            std::copy_n(
                tile.begin() + ptrdiff_t{3} * y * window[3], ptrdiff_t{3} * window[3],
                paper.begin() + ptrdiff_t{3} * ((corner[0] + y) * canvas.width + corner[1]));
        }
    }
    Pixels warped(turned.size());
    warp(kPlainKernels, paper.data(), canvas, warped.data(), box_of(size), 3,
         table.canvas.inverse + 9 * picture, layer.warp);
    const bool* flips = table.canvas.flips + 2 * picture;
    for (int y = 0; y < size.height; ++y) {
        for (int x = 0; x < size.width; ++x) {
            const int from_x = flips[0] ? size.width - 1 - x : x;
            const int from_y = flips[1] ? size.height - 1 - y : y;
            std::copy_n(warped.begin() + ptrdiff_t{3} * (from_y * size.width + from_x), 3,
                        turned.begin() + ptrdiff_t{3} * (y * size.width + x));
        }
    }
    return true;
}

// A sample, a step at a time; false where an image is refused.
bool plainly(Worker& worker, const Input& input, int row, Pixels& out) {
    const JoinTable& table = input.table;
    const Size size = table.size;
    const size_t pixels = static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    for (int layer = 0; layer < table.layers; ++layer) {
        const int64_t picture = int64_t{row} * table.layers + layer;
        if (layer > 0 && table.offsets[picture] == table.offsets[picture + 1]) continue;
        Pixels turned(3 * pixels);
        const bool made = table.canvas.layers[0].size.height == 0
                              ? shown(worker, input, table.offsets[picture], size, turned)
                              : on_canvas(worker, input, picture, turned);
        if (!made) return false;
        if (layer == 0) {
            out = turned;
            continue;
        }
        for (int y = 0; table.weights == nullptr && y < size.height; ++y) {
            for (int x = 0; x < size.width; ++x) {
                const ptrdiff_t place = ptrdiff_t{y} * size.width + x;
                bool covered = false;
                if (table.masks != nullptr) {
                    covered =
                        table.masks[pixels * static_cast<size_t>(row) + static_cast<size_t>(place)];
                } else {
                    const int32_t* part = table.rectangles + 4 * int64_t{row};
                    covered = y >= part[0] && y < part[0] + part[2] && x >= part[1] &&
                              x < part[1] + part[3];
                }
                if (covered) std::copy_n(turned.begin() + 3 * place, 3, out.begin() + 3 * place);
            }
        }
        if (table.weights == nullptr) continue;
        const float* weights = table.weights + 2 * int64_t{row};
        for (size_t i = 0; i < out.size(); ++i) {
            const float mine = static_cast<float>(out[i]) * weights[0],
                        other = static_cast<float>(turned[i]) * weights[1];
            out[i] = static_cast<uint8_t>(std::nearbyint(mine + other));
        }
    }
    return true;
}

void compare(const Input& input, uint8_t* out, bool whole) {
    static DecoderCounts counts[2];
    static Worker workers[] = {Worker(kPlainKernels, counts[0]),
                               Worker(*find_kernels("auto"), counts[1])};
    const JoinTable& table = input.table;
    const size_t each =
        size_t{3} * static_cast<size_t>(table.size.height) * static_cast<size_t>(table.size.width);
    Pixels made[2];
    std::vector<Failure> failures[2];
    for (int i = 0; i < 2; ++i) {
        std::memset(out, 0xa5, each * static_cast<size_t>(table.count));
        const auto job = join_job(open_buffers(input.files), table, input.options);
        while (job->run_some(workers[i])) {
        }
        failures[i] = job->take_failures();
        made[i].assign(out, out + each * static_cast<size_t>(table.count));
    }
    require(failures[0].size() == failures[1].size(), "the inner loops differ in their verdicts");
    if (!whole) return;  // what is not seen of a canvas is what was there before
    require(made[0] == made[1], "the inner loops differ");
    size_t next = 0;
    for (int row = 0; row < table.count; ++row) {
        const bool failed = next < failures[0].size() && failures[0][next].row == row;
        next += failed;
        Pixels wanted(each);
        const bool good = plainly(workers[0], input, row, wanted);
        require(good != failed, "the plain path has another verdict");
        if (failed) wanted.assign(each, 0);
        require(std::equal(wanted.begin(), wanted.end(),
                           made[0].begin() + static_cast<ptrdiff_t>(each) * row),
                "the plain path makes other pixels");
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 2) return 0;
    const size_t chosen = std::min<size_t>(size_t{data[0]} << 8 | data[1], size - 2);
    Choices choices(data + 2, chosen);
    const Pixels file(data + 2 + chosen, data + size);

    Places places;
    Size canvases[2];
    for (Size& size : canvases)
        size = {1 + choices.byte() % kMostSide, 1 + choices.byte() % kMostSide};
    const Size out_size = {1 + choices.byte() % kMostSide, 1 + choices.byte() % kMostSide};
    const Size image = {1 + choices.byte() % 70, 1 + choices.byte() % 70};  // a guess
    const int count = 1 + choices.byte() % 3, layers = 1 + choices.byte() % 2;
    const int kind = choices.byte();
    const bool bare = kind < 80, whole = kind < 210;
    const bool fits = choices.byte() < 230;
    for (int picture = 0; picture < count * layers; ++picture) {
        const int least = picture % layers == 0 && choices.byte() < 250 ? 1 : 0;
        int members = least + choices.byte() % kMostMembers;
        if (bare && fits) members = std::min(members, 1);
        const Size canvas = canvases[picture % layers];
        for (int i = 0; i < members; ++i) {
            add_member(choices, places, canvas, image);
            if (!bare || !fits) continue;
            places.windows[places.windows.size() - 2] = out_size.height;
            places.windows[places.windows.size() - 1] = out_size.width;
        }
        places.offsets.push_back(places.offsets.back() + members);
        const int32_t all[4] = {0, 0, canvas.height, canvas.width};
        for (int i = 0; i < 4; ++i)
            places.seen.push_back(whole ? all[i] : near(choices, 0, all[2 + i % 2]));
        const bool moved = choices.flag();
        for (int i = 0; i < 9; ++i)
            places.inverse.push_back(moved ? coefficient(choices) : i % 4 == 0 ? 1.0 : 0.0);
        const int flips = choices.byte();
        places.flips.push_back(flips & 1);
        places.flips.push_back(flips >> 1 & 1);
    }
    const int mixes = choices.byte() % 3;  // blended, rectangles, masks
    const bool covers = layers == 2 && mixes == 1, masked = layers == 2 && mixes == 2;
    for (int i = 0; masked && i < count * out_size.height; ++i) {
        const int every = 1 + choices.byte() % 9;
        for (int x = 0; x < out_size.width; ++x) places.masks.push_back(x % every == 0);
    }
    for (int row = 0; covers && row < count; ++row) {
        int32_t part[4] = {near(choices, 0, out_size.height), near(choices, 0, out_size.width),
                           near(choices, 0, out_size.height), near(choices, 0, out_size.width)};
        if (choices.byte() < 200) {
            for (int axis = 0; axis < 2; ++axis) {
                const int side = axis == 0 ? out_size.height : out_size.width;
                part[axis] = std::clamp(part[axis], 0, side);
                part[axis + 2] = std::clamp(part[axis + 2], 0, side - part[axis]);
            }
        }
        places.rectangles.insert(places.rectangles.end(), part, part + 4);
    }
    for (int row = 0; layers == 2 && mixes == 0 && row < count; ++row) {
        const float share = choices.byte() % 4 == 0 ? 0.5f : static_cast<float>(choices.uniform());
        places.weights.push_back(share);
        places.weights.push_back(1.0f - share);
    }

    const auto boxes = copy_of(places.boxes), sizes = copy_of(places.sizes),
               windows = copy_of(places.windows), corners = copy_of(places.corners),
               seen = copy_of(places.seen);
    const auto offsets = copy_of(places.offsets);
    const auto inverse = copy_of(places.inverse);
    const auto weights = copy_of(places.weights);
    const auto rectangles = copy_of(places.rectangles);
    const auto masks = copy_of(places.masks), still = copy_of(places.still),
               flips = copy_of(places.flips);
    const size_t bytes = size_t{3} * static_cast<size_t>(count) *
                         static_cast<size_t>(out_size.height) * static_cast<size_t>(out_size.width);
    const std::unique_ptr<uint8_t[]> out(new uint8_t[bytes]);

    Input input = {places, {}, {}, {}};
    JoinTable& table = input.table;
    table.members = given_geometry(boxes.get(), sizes.get(), windows.get(),
                                   reinterpret_cast<const bool*>(still.get()), nullptr);
    table.offsets = offsets.get();
    if (bare) {
        canvases[0] = canvases[1] = {};
    } else {
        table.canvas = {{{canvases[0], {}}, {canvases[1], {}}},
                        windows.get(),
                        corners.get(),
                        seen.get(),
                        inverse.get(),
                        reinterpret_cast<const bool*>(flips.get())};
    }
    table.weights = layers == 2 && mixes == 0 ? weights.get() : nullptr;
    table.rectangles = covers ? rectangles.get() : nullptr;
    table.masks = masked ? reinterpret_cast<const bool*>(masks.get()) : nullptr;
    table.count = count;
    table.layers = layers;
    table.resample.filter = static_cast<Filter>(choices.byte() % 4);
    table.resample.antialias = choices.flag();
    table.resample.padding = static_cast<Padding>(choices.byte() % 4);
    for (uint8_t& value : table.resample.fill) value = static_cast<uint8_t>(choices.byte());
    for (CanvasLayer& layer : table.canvas.layers) {
        layer.warp.bilinear = true;
        layer.warp.fades = choices.flag();
        layer.warp.mixes = choices.flag();
        for (float& value : layer.warp.fill) value = static_cast<float>(choices.byte());
    }
    table.out = out.get();
    table.size = out_size;
    input.options.limits.max_pixels = 1 << 12;
    input.options.exif_orientation = choices.flag();
    input.options.whole = choices.flag();
    const auto members = static_cast<size_t>(places.offsets.back());
    std::vector<Pixels> parts;
    for (size_t member = 0; member < members; ++member) {
        const bool cut = choices.byte() > 240;
        const size_t length =
            cut ? file.size() * static_cast<size_t>(choices.byte()) / 256 : file.size();
        parts.emplace_back(file.begin(), file.begin() + static_cast<ptrdiff_t>(length));
    }
    for (const Pixels& part : parts) input.files.push_back({part.data(), part.size()});

    const bool sound = is_sound(places, canvases, out_size, layers);
    bool refused = false;
    try {
        (void)join_job(open_buffers(input.files), table, input.options);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    require(refused != sound, "a table is refused that is sound, or taken that is not");
    if (sound) compare(input, out.get(), whole);
    return 0;
}
