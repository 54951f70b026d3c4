// Fuzz target: decoding of any bytes: header, box, region decode, resampling. The first eight bytes
// choose box, size and options; the rest is the file. What must hold, apart from no finding of the
// sanitizers:
//
// - the portable inner loops and the best that the processor has make the same pixels;
// - each of several views of one decoding equals the view alone;
// - an output that is the upper left part of its place equals one that fills it, and nothing is
//   written beside it;
// - colour operations, a geometry, a warp and a second geometry at once give the same as one by
// one;
// - with libjpeg-turbo in place of our own decoder, the outcome is the same;
// - the pixels of our own decoder are those of libjpeg-turbo's full decode, cropped. (Not compared
//   if the image is reduced in decoding: coefficients that no encoder writes then overflow in other
//   ways.)
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "choices.hpp"
#include "jobs.hpp"

namespace {

using namespace fastload;

// A box somewhere in the image, or, for some inputs, partly outside of it.
class FuzzedGeometry {
  public:
    explicit FuzzedGeometry(const uint8_t* bytes) {
        std::copy(bytes, bytes + sizeof bytes_, bytes_);
    }

    Outcome operator()(int, Size image, Geometry& geometry) const {
        const int top = bytes_[0] * image.height / 256, left = bytes_[1] * image.width / 256;
        const int outside = bytes_[6] == 255 ? 1 : 0;
        geometry.box = {top, left, 1 + bytes_[2] * (image.height - top - 1) / 255 + outside,
                        1 + bytes_[3] * (image.width - left - 1) / 255 + outside};
        geometry.size = {1 + bytes_[4] % 48, 1 + bytes_[4] / 6};
        if (bytes_[5] & 1) geometry.size = {geometry.box.height, geometry.box.width};
        geometry.window = {bytes_[6] % 32 - 12, bytes_[6] / 8 - 12, kOut.height, kOut.width};
        geometry.mirror = (bytes_[5] & 2) != 0;
        geometry.upside_down = (bytes_[5] & 4) != 0;
        geometry.bicubic = (bytes_[5] & 8) != 0;
        return {};
    }

    static constexpr Size kOut = {33, 21};

  private:
    uint8_t bytes_[8];
};

constexpr size_t kChoices = 8;

// The rows it is given, from a column on.
class Collector final : public RowSink {
  public:
    Collector(int left, int width) : left_(left), width_(width) {}

    void take(const uint8_t* const* rows, int count) override {
        for (int i = 0; i < count; ++i)
            pixels.insert(pixels.end(), rows[i] + 4 * left_, rows[i] + 4 * (left_ + width_));
    }
    void restart() override { pixels.clear(); }

    std::vector<uint8_t> pixels;

  private:
    int left_, width_;
};

// What a decoder gives for a box: the outcome, the pixels of the rows, and whether our own decoder
// decoded the image.
struct Raw {
    Outcome outcome;
    std::vector<uint8_t> pixels;
    bool own = false;
    int shift = 0;  // by how much it was reduced
};

Raw decode_raw(Worker& worker, DecoderCounts& counts, const std::vector<uint8_t>& file,
               const DecodeLimits& limits, bool whole, const uint8_t* choices, bool all_above) {
    Raw raw;
    raw.outcome = worker.decoder.open(file.data(), file.size(), limits);
    if (!raw.outcome.ok()) return raw;
    Size size = worker.decoder.header().size;
    const int shift = choices[5] >> 3 & 3;
    if (shift > 0 && worker.decoder.reduce(shift)) {
        raw.shift = shift;
        size = {(size.height - 1) / (1 << shift) + 1, (size.width - 1) / (1 << shift) + 1};
    }
    Geometry geometry;
    raw.outcome = resolve(FuzzedGeometry(choices), 0, size, FuzzedGeometry::kOut, geometry);
    if (!raw.outcome.ok()) {
        worker.decoder.close();
        return raw;
    }
    Box box = geometry.box;
    Collector collector(all_above ? box.left : 0, box.width);
    const size_t above =
        all_above ? size_t{4} * static_cast<size_t>(box.top) * static_cast<size_t>(box.width) : 0;
    if (all_above) box = {0, 0, box.top + box.height, size.width};
    const int64_t before = counts.of[0].load();
    raw.outcome = worker.decoder.read(box, whole, collector);
    worker.decoder.close();
    raw.own = counts.of[0].load() != before;
    if (raw.outcome.ok())
        raw.pixels.assign(collector.pixels.begin() + static_cast<ptrdiff_t>(above),
                          collector.pixels.end());
    return raw;
}

View fuzzed_view(const uint8_t* choices, int turn, std::vector<uint8_t>& out) {
    uint8_t turned[kChoices];
    for (size_t i = 0; i < kChoices; ++i)
        turned[i] = choices[(i + static_cast<size_t>(turn)) % kChoices];
    const ResampleOptions options = {static_cast<Filter>(choices[7] & 3), (choices[7] & 4) != 0,
                                     static_cast<Padding>(choices[7] >> 3 & 3)};
    return {FuzzedGeometry(turned), options, out.data(), FuzzedGeometry::kOut};
}

// Compares a view with colour operations, a geometry, perhaps a warp, and a second geometry with
// the same steps one by one in memory. Also for images of one channel, without colour operations.
void compare_chains(Worker (&workers)[3], const std::vector<uint8_t>& file,
                    const DecodeOptions& options, const uint8_t* choices) {
    const int channels = (choices[4] & 1) != 0 ? 1 : 3;
    const size_t pixels = static_cast<size_t>(FuzzedGeometry::kOut.height) *
                          static_cast<size_t>(FuzzedGeometry::kOut.width);
    const size_t bytes = pixels * static_cast<size_t>(channels);
    std::vector<uint8_t> found(bytes, 1), first(bytes), second(bytes);
    const std::vector<int32_t> kinds = {choices[0] % kColourKinds - 1,
                                        choices[1] % kColourKinds - 1};
    std::vector<float> numbers(2 * kColourNumbers);
    for (size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<float>(choices[i % kChoices]) / 128.0f;
    const View asked = fuzzed_view(choices, 0, found), then = fuzzed_view(choices, 3, second);
    View chained = asked;
    chained.channels = channels;
    chained.later = then.geometries;
    chained.later_resample = asked.resample;
    if (channels == 1) {
        chained.resample.filter = Filter::nearest;
        chained.later_resample.filter = Filter::nearest_exact;
    } else {
        chained.colour.kinds = kinds.data();
        chained.colour.numbers = numbers.data();
        chained.colour.steps = 2;
    }
    const bool flips[2] = {false, false};
    const auto unit = [&](int i) { return (choices[i] - 128) / 64.0; };
    const double inverse[9] = {unit(0), unit(1),     8 * unit(2), unit(3),
                               unit(4), 8 * unit(5), 0.0,         unit(6) * (choices[1] & 1) / 64,
                               1.0};
    const int32_t warped_size[2] = {1 + choices[2] % 40, 1 + choices[3] % 40};
    const bool warps = (choices[6] & 2) != 0, all_first = warps && (choices[6] & 4) != 0;
    if (warps) {
        chained.warp = {inverse,
                        warped_size,
                        {channels == 3 && (choices[0] & 1) != 0,
                         (choices[0] & 2) != 0,
                         (choices[0] & 4) != 0,
                         {3, 100, 255, 0}}};
    }
    if (all_first) chained.geometries = whole_images(flips);
    const Bytes input = {file.data(), file.size()};
    const Outcome at_once = decode_image(workers[1], input, {chained}, 0, options);
    workers[1].decoder.close();

    // All of the image; its colours and the first geometry; the second one.
    if (!workers[0].decoder.open(input.data, input.size, options.limits).ok()) return;
    const ImageHeader header = workers[0].decoder.header();
    const bool turned = options.exif_orientation && workers[0].decoder.orientation() >= 5;
    const Size size = turned ? Size{header.size.width, header.size.height} : header.size;
    workers[0].decoder.close();
    std::vector<uint8_t> whole(static_cast<size_t>(size.height) * static_cast<size_t>(size.width) *
                               static_cast<size_t>(channels));
    View all;
    all.geometries = whole_images(flips);
    all.resample.filter = Filter::nearest;
    all.out = whole.data();
    all.size = size;
    all.channels = channels;
    const Outcome decoded = decode_image(workers[0], input, {all}, 0, options);
    workers[0].decoder.close();
    const int64_t rows[1] = {0};
    const auto step = [&](const std::vector<uint8_t>& from, Size of, View view) {
        PixelRows images;
        images.base = from.data();
        images.rows = rows;
        images.size = of;
        images.count = 1;
        const auto job = gather_job(images, view);
        while (job->run_some(workers[0])) {
        }
        return job->take_failures().empty();
    };
    View one = chained, two = chained;
    one.later = nullptr;
    one.warp = {};
    if (all_first) {
        one.size = size;
        first.resize(whole.size());
    }
    one.out = first.data();
    two.geometries = chained.later;
    two.resample = chained.later_resample;
    two.later = nullptr;
    two.warp = {};
    two.colour = {};
    two.out = second.data();
    bool good = decoded.ok() && step(whole, size, one);
    Size between = one.size;
    if (good && warps) {
        const Size made = chained.warp.size_of(0);
        std::vector<uint8_t> warped(static_cast<size_t>(made.height) *
                                    static_cast<size_t>(made.width) *
                                    static_cast<size_t>(channels));
        warp(kPlainKernels, first.data(), between, warped.data(), box_of(made), channels, inverse,
             chained.warp.options);
        first = std::move(warped);
        between = made;
    }
    good = good && step(first, between, two);
    // Damage may lie where the chain does not look.
    require(!good || at_once.ok(), "a chain is refused whose steps are not");
    if (good && at_once.ok()) require(found == second, "a chain differs from its steps");
}

// Compares an output in the middle of a batch of larger places with one alone.
void compare_padded(Worker& worker, const std::vector<uint8_t>& file, const DecodeOptions& options,
                    const uint8_t* choices) {
    constexpr Size kPlace = {FuzzedGeometry::kOut.height + 3, FuzzedGeometry::kOut.width + 5};
    const auto bytes = [](Size size) {
        return size_t{3} * static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    };
    const Bytes input = {file.data(), file.size()};
    std::vector<uint8_t> alone(bytes(FuzzedGeometry::kOut)), places(2 * bytes(kPlace), 0xa5);
    const int32_t sizes[4] = {1, 1, FuzzedGeometry::kOut.height, FuzzedGeometry::kOut.width};
    const View plain = fuzzed_view(choices, 0, alone);
    View padded = plain;
    padded.out = places.data();
    padded.size = kPlace;
    padded.sizes = sizes;
    if ((choices[6] & 1) != 0) padded.later = fuzzed_view(choices, 3, alone).geometries;
    View packed = plain;
    packed.later = padded.later;
    const Outcome one = decode_image(worker, input, {packed}, 0, options);
    worker.decoder.close();
    const Outcome other = decode_image(worker, input, {padded}, 1, options);
    worker.decoder.close();
    require(one.status == other.status && one.message == other.message,
            "an output in a larger place has another verdict");
    if (!one.ok()) return;
    for (int row = 0; row < 2 * kPlace.height; ++row) {
        const uint8_t* line = places.data() + size_t{3} * static_cast<size_t>(row * kPlace.width);
        const int y = row - kPlace.height;
        const bool shown = y >= 0 && y < FuzzedGeometry::kOut.height;
        const size_t inside = shown ? size_t{3} * FuzzedGeometry::kOut.width : 0;
        require(
            inside == 0 || std::equal(line, line + inside,
                                      alone.data() + inside * static_cast<size_t>(shown ? y : 0)),
            "an output in a larger place differs");
        require(std::all_of(line + inside, line + size_t{3} * kPlace.width,
                            [](uint8_t byte) { return byte == 0xa5; }),
                "something is written beside an output");
    }
}

// Compares the portable loops with the best ones on the whole way from a file to a batch.
void compare_kernels(Worker (&workers)[3], const std::vector<uint8_t>& file,
                     const DecodeOptions& options, const uint8_t* choices) {
    // Heap memory of exactly this size, so that a byte read or written beyond is seen.
    const size_t bytes = size_t{3} * FuzzedGeometry::kOut.height * FuzzedGeometry::kOut.width;
    const Bytes input = {file.data(), file.size()};
    Outcome outcomes[2];
    std::vector<uint8_t> outputs[2];
    for (int i = 0; i < 2; ++i) {
        outputs[i].assign(bytes, 0);
        const std::vector<View> views = {fuzzed_view(choices, 0, outputs[i])};
        outcomes[i] = decode_image(workers[i], input, views, 0, options);
        workers[i].decoder.close();
    }
    require(outcomes[0].status == outcomes[1].status && outputs[0] == outputs[1],
            "the inner loops differ");

    std::vector<uint8_t> apart(bytes),
        together[2] = {std::vector<uint8_t>(bytes), std::vector<uint8_t>(bytes)};
    const View other = fuzzed_view(choices, 3, apart);
    if (options.draft) return;  // reduced by as much as all views allow
    const Outcome alone = decode_image(workers[1], input, {other}, 0, options);
    workers[1].decoder.close();
    const std::vector<View> both = {fuzzed_view(choices, 0, together[0]),
                                    fuzzed_view(choices, 3, together[1])};
    const Outcome joint = decode_image(workers[1], input, both, 0, options);
    workers[1].decoder.close();
    // Damage may lie between the boxes, where only both together look.
    require(!joint.ok() || (outcomes[1].ok() && alone.ok()),
            "two views are made of what one cannot be made of");
    if (joint.ok())
        require(together[0] == outputs[1] && together[1] == apart,
                "two views differ from one and one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // One of each, kept like a thread's: what one input leaves behind must not hurt the next.
    static DecoderCounts counts[3];
    static Worker workers[] = {Worker(kPlainKernels, counts[0]),
                               Worker(*find_kernels("auto"), counts[1]),
                               Worker(kPlainKernels, counts[2])};
    workers[2].decoder.use_libjpeg(true);
    if (size < kChoices) return 0;
    DecodeOptions options;
    options.exif_orientation = (data[7] & 32) != 0;
    options.whole = (data[7] & 64) != 0;
    options.draft = (data[5] & 8) != 0;
    options.limits.max_pixels = 1 << 12;
    const std::vector<uint8_t> file(data + kChoices, data + size);

    if (data[7] >= 224) compare_kernels(workers, file, options, data);
    if (data[7] % 64 >= 56) compare_padded(workers[1], file, options, data);
    if (data[7] % 32 >= 28) compare_chains(workers, file, options, data);
    const Raw ours =
        decode_raw(workers[1], counts[1], file, options.limits, options.whole, data, false);
    const Raw theirs =
        decode_raw(workers[2], counts[2], file, options.limits, options.whole, data, false);
    if (ours.shift != theirs.shift) return 0;  // too narrow for our own
    if (ours.outcome.status != theirs.outcome.status ||
        ours.outcome.message != theirs.outcome.message) {
        std::fprintf(stderr, "ours: \"%s\", libjpeg-turbo: \"%s\"\n", ours.outcome.message.c_str(),
                     theirs.outcome.message.c_str());
        std::abort();
    }
    if (!ours.own || !ours.outcome.ok() || ours.shift > 0) return 0;
    const Raw full = decode_raw(workers[2], counts[2], file, options.limits, false, data, true);
    require(full.outcome.ok(), "libjpeg-turbo does not decode what our own decoder took");
    require(full.pixels == ours.pixels, "the pixels differ from libjpeg-turbo's full decode");
    return 0;
}
