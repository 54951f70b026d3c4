// The bindings of colour operations, blur, noise and recompression.
#include <algorithm>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings.hpp"
#include "clahe.hpp"
#include "floats.hpp"
#include "noise.hpp"

namespace fastload {

using namespace nb::literals;

ColourTable colour_table(const Input<int32_t, 2>& kinds, const Input<float, 3>& numbers,
                         size_t count) {
    ColourTable table;
    table.kinds = kinds.data();
    table.numbers = numbers.data();
    table.steps = static_cast<int>(kinds.shape(1));
    require(kinds.shape(0) == count && numbers.shape(0) == count &&
                numbers.shape(1) == kinds.shape(1) && numbers.shape(2) == kColourNumbers,
            "kinds (B * chains, S), numbers (B * chains, S, 6) are needed");
    for (size_t i = 0; i < kinds.size(); ++i)
        require(table.kinds[i] < kColourKinds, "kinds: unknown");
    return table;
}

namespace {

ColourImages colour_images(const Array<uint8_t, 4>& images) {
    require(images.shape(3) == 1 || images.shape(3) == 3, "images: 1 or 3 channels are needed");
    return {images.data(), static_cast<int>(images.shape(0)),
            size_in(images.shape(1), images.shape(2)), static_cast<int>(images.shape(3))};
}

std::unique_ptr<Ticket> recolour(Pool& pool, Array<uint8_t, 4> images, Input<int32_t, 2> kinds,
                                 Input<float, 3> numbers, Optional<float, 2> weights, bool bilinear,
                                 Optional<float, 1> fill, bool fused, bool here) {
    const size_t count = images.shape(0), chains = weights ? weights->shape(1) - 1 : 1;
    require(!weights || (weights->shape(0) == count && weights->shape(1) > 1),
            "weights (B, 1 + chains) are needed");
    ColourTable table = colour_table(kinds, numbers, count * chains);
    table.weights = data_of(weights);
    table.chains = static_cast<int>(chains);
    table.bilinear = bilinear;
    table.fills = fill.has_value();
    if (fill) {
        require(fill->size() == 3, "fill (3,) is needed");
        std::copy(fill->data(), fill->data() + 3, table.fill);
    }
    require(!fused || can_fuse_colour(), "fused: this processor cannot");
    return submit(pool, colour_job(colour_images(images), table, fused),
                  kept(images, kinds, numbers, weights), here);
}

std::unique_ptr<Ticket> blur(Pool& pool, Array<uint8_t, 4> images, Input<float, 2> down,
                             Input<float, 2> across, Optional<bool, 1> rows, bool fused) {
    const size_t count = images.shape(0);
    require(down.shape(1) == count && across.shape(1) == count && (!rows || rows->size() == count),
            "down (taps, B), across (taps, B), rows (B,) are needed");
    require(down.shape(0) % 2 == 1 && across.shape(0) % 2 == 1, "taps: odd numbers are needed");
    require(images.shape(1) > down.shape(0) / 2 && images.shape(2) > across.shape(0) / 2,
            "images must be larger than half of the taps");
    BlurTable table;
    table.down = down.data();
    table.across = across.data();
    table.rows = data_of(rows);
    table.down_taps = static_cast<int>(down.shape(0));
    table.across_taps = static_cast<int>(across.shape(0));
    require(!fused || can_fuse_colour(), "fused: this processor cannot");
    return submit(pool, blur_job(colour_images(images), table, fused),
                  kept(images, down, across, rows), false);
}

std::unique_ptr<Ticket> convolve(Pool& pool, Array<uint8_t, 4> images, Input<float, 3> kernels,
                                 Optional<bool, 1> rows, bool fused, bool here) {
    const size_t count = images.shape(0), side = kernels.shape(1);
    require(kernels.shape(0) == count && kernels.shape(2) == side && side % 2 == 1 &&
                (!rows || rows->size() == count),
            "kernels (B, side, side) of an odd side, rows (B,) are needed");
    require(images.shape(1) > side / 2 && images.shape(2) > side / 2,
            "images must be larger than half of the kernels");
    const FilterTable table = {kernels.data(), data_of(rows), static_cast<int>(side)};
    require(!fused || can_fuse_colour(), "fused: this processor cannot");
    return submit(pool, convolve_job(colour_images(images), table, fused),
                  kept(images, kernels, rows), here);
}

std::unique_ptr<Ticket> median(Pool& pool, Array<uint8_t, 4> images, Input<int32_t, 1> sides,
                               bool here) {
    require(sides.size() == images.shape(0), "sides (B,) are needed");
    require(
        std::all_of(sides.data(), sides.data() + sides.size(),
                    [](int32_t side) { return side > 0 && side <= kMostMedian && side % 2 == 1; }),
        "sides: odd numbers from 1 to 15 are needed");
    const ColourImages given = colour_images(images);
    require(given.size.height > 0 && given.size.width > 0, "images: pixels are needed");
    return submit(pool, median_job(given, {sides.data()}), kept(images, sides), here);
}

std::unique_ptr<Ticket> clahe(Pool& pool, Array<uint8_t, 4> images, Input<double, 1> limits,
                              int down, int across, bool here) {
    require(limits.size() == images.shape(0), "limits (B,) are needed");
    require(down > 0 && down <= kMostTiles && across > 0 && across <= kMostTiles,
            "down, across: from 1 to 256 tiles are needed");
    require(std::all_of(limits.data(), limits.data() + limits.size(),
                        [](double limit) { return limit >= 0.0 && limit <= 1e6; }),
            "limits: from 0 to 1e6 are needed");
    const ColourImages given = colour_images(images);
    require(given.size.height > 0 && given.size.width > 0, "images: pixels are needed");
    return submit(pool, clahe_job(given, {limits.data(), down, across}), kept(images, limits),
                  here);
}

std::unique_ptr<Ticket> add_noise(Pool& pool, Array<uint8_t, 4> images, Input<uint64_t, 1> keys,
                                  Input<float, 1> scales, Input<float, 1> shifts,
                                  Optional<bool, 1> rows, bool clips, bool shared, bool here) {
    const size_t count = images.shape(0);
    require(keys.size() == count && scales.size() == count && shifts.size() == count &&
                (!rows || rows->size() == count),
            "keys (B,), scales (B,), shifts (B,), rows (B,) are needed");
    const ColourImages given = {images.data(), static_cast<int>(count),
                                size_in(images.shape(1), images.shape(2)),
                                static_cast<int>(images.shape(3))};
    const NoiseTable table = {keys.data(),   scales.data(), shifts.data(),
                              data_of(rows), clips,         shared};
    return submit(pool, noise_job(given, table), kept(images, keys, scales, shifts, rows), here);
}

std::unique_ptr<Ticket> make_normals(Pool& pool, Input<uint64_t, 1> keys, Array<float, 2> out,
                                     bool here) {
    require(keys.size() == out.shape(0), "keys (B,), out (B, N) are needed");
    return submit(pool,
                  normals_job(keys.data(), static_cast<int>(keys.size()),
                              static_cast<int64_t>(out.shape(1)), out.data()),
                  kept(keys, out), here);
}

std::unique_ptr<Ticket> make_box_normals(Pool& pool, Input<uint64_t, 1> keys,
                                         Input<int64_t, 2> boxes, Array<float, 1> out, bool here) {
    static_assert(sizeof(CounterBox) == 6 * sizeof(int64_t));
    require(boxes.shape(0) == keys.size() && boxes.shape(1) == 6,
            "keys (N,), boxes (N, 6) are needed");
    const auto* const given = reinterpret_cast<const CounterBox*>(boxes.data());
    auto left = static_cast<int64_t>(out.size());
    for (size_t i = 0; i < keys.size(); ++i) {
        const int64_t sides[] = {given[i].planes, given[i].lines, given[i].width};
        int64_t count = 1;
        for (const int64_t side : sides) {
            require(side > 0 && side <= left / count, "boxes: of as many numbers as out has");
            count *= side;
        }
        left -= count;
    }
    require(left == 0, "boxes: of as many numbers as out has");
    return submit(pool,
                  box_normals_job(keys.data(), given, static_cast<int>(keys.size()), out.data()),
                  kept(keys, boxes, out), here);
}

// Pixels whose rows may lie apart.
using Rows = nb::ndarray<const uint8_t, nb::ndim<4>, nb::device::cpu>;

std::unique_ptr<Ticket> convert(Pool& pool, Rows images, Input<float, 1> scale,
                                Input<float, 1> offset, Array<float, 4> out, bool fused,
                                bool here) {
    require(images.shape(3) == 3 && scale.size() == 3 && offset.size() == 3,
            "images (B, H, W, 3), scale (3,), offset (3,) are needed");
    for (size_t axis = 0; axis < 4; ++axis)
        require(images.shape(axis) == out.shape(axis), "out: the shape of the images is needed");
    require(images.stride(3) == 1 && images.stride(2) == 3, "images: packed pixels are needed");
    require(!fused || can_fuse_colour(), "fused: this processor cannot");
    ConvertTable table;
    std::copy_n(scale.data(), 3, table.scale);
    std::copy_n(offset.data(), 3, table.offset);
    const ConvertImages given = {images.data(),
                                 static_cast<int>(images.shape(0)),
                                 size_in(images.shape(1), images.shape(2)),
                                 images.stride(0),
                                 images.stride(1),
                                 out.data()};
    return submit(pool, convert_job(given, table, fused), kept(images, out), here);
}

// Pixels of any strides.
template <typename T>
using Pixels = nb::ndarray<const T, nb::ndim<4>, nb::device::cpu>;

// A size whose pixels can be counted in 31 bits.
Size counted_size(size_t height, size_t width) {
    require(height > 0 && width > 0 && height <= INT32_MAX / width,
            "images of 1 to 2,147,483,647 pixels are needed");
    return size_in(height, width);
}

TurnTable turn_table(const Optional<double, 3>& matrices, const Optional<bool, 1>& rows,
                     size_t count) {
    require(matrices.has_value() == rows.has_value(), "matrices and rows go together");
    require(!matrices || (matrices->shape(0) == count && matrices->shape(1) == 2 &&
                          matrices->shape(2) == 2 && rows->size() == count),
            "matrices (B, 2, 2), rows (B,) are needed");
    return {data_of(matrices), data_of(rows)};
}

// Throws ValueError for numbers of a step by which a loop would leave the plane.
void check_float_steps(const FloatTable& table, const FloatImages& images) {
    const size_t channels = static_cast<size_t>(images.channels);
    for (int step = 0; step < table.steps; ++step) {
        require(table.kinds[step] >= 0 && table.kinds[step] < kFloatKinds, "kinds: unknown");
        const auto kind = static_cast<FloatKind>(table.kinds[step]);
        const Size size = images.out_size;
        require(kind != FloatKind::blur || std::min(size.height, size.width) > kBlurTaps / 2,
                "images must be larger than half of the taps");
        if (kind != FloatKind::low_resolution) continue;
        for (int row = 0; row < images.count; ++row) {
            const size_t first = (static_cast<size_t>(row) * static_cast<size_t>(table.steps) +
                                  static_cast<size_t>(step)) *
                                 channels;
            for (size_t at = first; at < first + channels; ++at) {
                const float* const n = table.numbers + at * kFloatNumbers;
                require(!table.applies[at] ||
                            (n[0] >= 1.0f && n[0] <= static_cast<float>(size.height) &&
                             n[1] >= 1.0f && n[1] <= static_cast<float>(size.width)),
                        "low_resolution: from one pixel to those of the side are needed");
            }
        }
    }
}

template <typename T>
std::unique_ptr<Ticket> change_floats(Pool& pool, Pixels<T> images, Array<float, 4> out,
                                      bool channels_last, Optional<float, 1> scale,
                                      Optional<float, 1> offset, Optional<double, 3> matrices,
                                      Optional<bool, 1> turned, Input<int32_t, 1> kinds,
                                      Input<bool, 3> applies, Input<float, 4> numbers,
                                      Input<uint64_t, 2> keys, Optional<bool, 2> mirrors,
                                      bool here) {
    const size_t count = images.shape(0), channels = images.shape(1), steps = kinds.size();
    const size_t axes[3] = {channels_last ? 3u : 1u, channels_last ? 1u : 2u,
                            channels_last ? 2u : 3u};
    require(out.shape(0) == count && out.shape(axes[0]) == channels && channels > 0,
            "out: as many images and channels are needed");
    FloatImages given;
    if constexpr (sizeof(T) == 1) {
        given.bytes = images.data();
        require(scale && offset && scale->size() == channels && offset->size() == channels,
                "scale (C,), offset (C,) are needed");
    } else {
        given.floats = images.data();
    }
    given.count = static_cast<int>(count);
    given.size = counted_size(images.shape(2), images.shape(3));
    given.channels = static_cast<int>(channels);
    given.image_step = images.stride(0);
    given.channel_step = images.stride(1);
    given.row_step = images.stride(2);
    given.pixel_step = images.stride(3);
    given.out = out.data();
    given.out_size = counted_size(out.shape(axes[1]), out.shape(axes[2]));
    given.channels_last = channels_last;
    require(given.out_size.height <= given.size.height && given.out_size.width <= given.size.width,
            "out: at most the size of the images is needed");
    require(applies.shape(0) == count && applies.shape(1) == steps && applies.shape(2) == channels,
            "applies (B, S, C) is needed");
    require(numbers.shape(0) == count && numbers.shape(1) == steps &&
                numbers.shape(2) == channels && numbers.shape(3) == kFloatNumbers,
            "numbers (B, S, C, 14) are needed");
    require(keys.shape(0) == count && keys.shape(1) == steps, "keys (B, S) are needed");
    require(!mirrors || (mirrors->shape(0) == count && mirrors->shape(1) == 2),
            "mirrors (B, 2) are needed");
    FloatTable table;
    table.scale = data_of(scale);
    table.offset = data_of(offset);
    table.turn = turn_table(matrices, turned, count);
    table.steps = static_cast<int>(steps);
    table.kinds = kinds.data();
    table.applies = applies.data();
    table.numbers = numbers.data();
    table.keys = keys.data();
    table.mirrors = data_of(mirrors);
    check_float_steps(table, given);
    return submit(
        pool, floats_job(given, table),
        kept(images, out, scale, offset, matrices, turned, kinds, applies, numbers, keys, mirrors),
        here);
}

template <typename T>
std::unique_ptr<Ticket> turn_masks(Pool& pool, Input<T, 3> masks, Array<T, 3> out,
                                   Input<double, 3> matrices, Input<bool, 1> turned, bool here) {
    const size_t count = masks.shape(0);
    require(out.shape(0) == count, "out: as many masks are needed");
    const ClassMasks<T> given = {masks.data(), static_cast<int>(count),
                                 counted_size(masks.shape(1), masks.shape(2)), out.data(),
                                 counted_size(out.shape(1), out.shape(2))};
    require(given.out_size.height <= given.size.height && given.out_size.width <= given.size.width,
            "out: at most the size of the masks is needed");
    return submit(pool, turn_masks_job(given, turn_table(matrices, turned, count)),
                  kept(masks, out, matrices, turned), here);
}

std::unique_ptr<Ticket> recompress(Pool& pool, Array<uint8_t, 4> images,
                                   Input<int32_t, 1> qualities, bool blue_first, bool here) {
    require(qualities.size() == images.shape(0), "qualities (B,) are needed");
    require(std::all_of(qualities.data(), qualities.data() + qualities.size(),
                        [](int32_t quality) { return quality >= 0 && quality <= 100; }),
            "qualities: from 1 to 100, or 0, are needed");
    const ColourImages given = colour_images(images);
    require(given.size.height > 0 && given.size.width > 0, "images: pixels are needed");
    return submit(pool, recompress_job(given, {qualities.data(), blue_first}),
                  kept(images, qualities), here);
}

}  // namespace

void bind_colour(nb::class_<Pool>& pool) {
    pool.def("recolour", &recolour, "images"_a, "kinds"_a, "numbers"_a, "weights"_a.none(),
             "bilinear"_a, "fill"_a.none(), "fused"_a, "here"_a = false)
        .def("blur", &blur, "images"_a, "down"_a, "across"_a, "rows"_a.none(), "fused"_a)
        .def("convolve", &convolve, "images"_a, "kernels"_a, "rows"_a.none(), "fused"_a,
             "here"_a = false)
        .def("median", &median, "images"_a, "sides"_a, "here"_a = false)
        .def("clahe", &clahe, "images"_a, "limits"_a, "down"_a, "across"_a, "here"_a = false)
        .def("add_noise", &add_noise, "images"_a, "keys"_a, "scales"_a, "shifts"_a, "rows"_a.none(),
             "clips"_a, "shared"_a, "here"_a = false)
        .def("normals", &make_normals, "keys"_a, "out"_a, "here"_a = false)
        .def("box_normals", &make_box_normals, "keys"_a, "boxes"_a, "out"_a, "here"_a = false)
        .def("convert", &convert, "images"_a, "scale"_a, "offset"_a, "out"_a, "fused"_a,
             "here"_a = false)
        .def("change_floats", &change_floats<uint8_t>, "images"_a, "out"_a, "channels_last"_a,
             "scale"_a.none(), "offset"_a.none(), "matrices"_a.none(), "turned"_a.none(), "kinds"_a,
             "applies"_a, "numbers"_a, "keys"_a, "mirrors"_a.none(), "here"_a = false)
        .def("change_floats", &change_floats<float>, "images"_a, "out"_a, "channels_last"_a,
             "scale"_a.none(), "offset"_a.none(), "matrices"_a.none(), "turned"_a.none(), "kinds"_a,
             "applies"_a, "numbers"_a, "keys"_a, "mirrors"_a.none(), "here"_a = false)
        .def("turn_masks", &turn_masks<uint8_t>, "masks"_a, "out"_a, "matrices"_a, "turned"_a,
             "here"_a = false)
        .def("turn_masks", &turn_masks<uint16_t>, "masks"_a, "out"_a, "matrices"_a, "turned"_a,
             "here"_a = false)
        .def("recompress", &recompress, "images"_a, "qualities"_a, "blue_first"_a,
             "here"_a = false);
}

}  // namespace fastload
