// Fuzz target: masks from shapes and geometries. The bytes choose an output of 1 to 64 pixels a
// side, a few images with up to three geometries and two warps each, and shapes: polygons, run
// lengths of the source, and numbers of any kind, infinite and not numbers among them.
//
// Shapes, maps and masks lie in heap memory of exactly the size that they have. What must hold,
// besides that memory is in order: a mask holds 0 and 1 alone; an image that fails has none; what
// is drawn of an unmoved image from polygons is drawn again from its own run lengths.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "choices.hpp"
#include "masks.hpp"

namespace {

using namespace fastload;

class ShapeChoices : public Choices {
  public:
    using Choices::Choices;

    double any_double() {
        const uint64_t high = bits(), all = high << 32 | bits();
        double value;
        std::memcpy(&value, &all, sizeof value);
        return value;
    }
    // Nearly always of this unit.
    double number(double unit) {
        const int kind = byte();
        return kind < 4 ? any_double() : unit * (byte() - 128 + byte() / 256.0) / 64.0;
    }
};

using Numbers = std::vector<double>;

void put_geometry(Numbers& map, ShapeChoices& choices, Size& size, Size to) {
    const int height = 1 + choices.byte() % size.height, width = 1 + choices.byte() % size.width;
    const int top = choices.byte() % (size.height - height + 1),
              left = choices.byte() % (size.width - width + 1);
    const bool resized = (choices.byte() & 1) != 0;
    const int tall = resized ? 1 + choices.byte() % 80 : height,
              wide = resized ? 1 + choices.byte() % 80 : width;
    const double values[kStepNumbers] = {static_cast<double>(left),
                                         static_cast<double>(top),
                                         static_cast<double>(width),
                                         static_cast<double>(height),
                                         static_cast<double>(wide),
                                         static_cast<double>(tall),
                                         static_cast<double>(choices.byte() % 60 - 30),
                                         static_cast<double>(choices.byte() % 60 - 30),
                                         static_cast<double>(to.width),
                                         static_cast<double>(to.height),
                                         static_cast<double>(choices.byte() & 7),
                                         static_cast<double>(choices.byte() & 7)};
    map.insert(map.end(), values, values + kStepNumbers);
    size = to;
}

void put_matrix(Numbers& map, ShapeChoices& choices, Size to) {
    const double units[9] = {1, 1, 32, 1, 1, 32, 0.02, 0.02, 1};
    double values[kStepNumbers] = {};
    for (int i = 0; i < 9; ++i) values[i < 8 ? i : 10] = choices.number(units[i]);
    values[8] = to.width;
    values[9] = to.height;
    map.insert(map.end(), values, values + kStepNumbers);
}

void put_object(Numbers& shapes, ShapeChoices& choices, Size source) {
    for (int parts = choices.byte() % 3; parts >= 0; --parts) {
        const int kind = choices.byte();
        if (kind < 120) {  // a polygon, or nearly
            const int corners = 3 + kind % 8;
            shapes.push_back(kind < 115 ? corners : corners - 2.5);
            for (int i = 0; i < 2 * corners; ++i) shapes.push_back(choices.number(64));
        } else if (kind < 240) {  // run lengths, with a sum that is right where none is odd
            const size_t header = shapes.size();
            shapes.insert(shapes.end(), {0.0, static_cast<double>(source.height),
                                         static_cast<double>(source.width)});
            int64_t left = int64_t{source.height} * source.width;
            int count = 0;
            for (; left > 0 && count < 200; ++count) {
                const int64_t length =
                    choices.ended() ? left : std::min<int64_t>(left, choices.byte() * (kind & 7));
                shapes.push_back(static_cast<double>(length));
                left -= length;
            }
            shapes[header] = -count;
            if (kind > 230 && count > 0) shapes.back() = choices.any_double();
        } else {
            for (int i = kind - 240; i >= 0; --i) shapes.push_back(choices.any_double());
        }
    }
}

Numbers runs_of(const uint8_t* mask, Size size) {
    Numbers made = {0.0, static_cast<double>(size.height), static_cast<double>(size.width), 0.0};
    uint8_t value = 0;
    for (int x = 0; x < size.width; ++x) {
        for (int y = 0; y < size.height; ++y) {
            if (mask[y * size.width + x] != value) {
                made.push_back(0.0);
                value = !value;
            }
            made.back() += 1.0;
        }
    }
    made[0] = 3.0 - static_cast<double>(made.size());
    return made;
}

// The images that failed.
std::vector<int> draw(const Numbers& shapes, const std::vector<int64_t>& objects,
                      const std::vector<int64_t>& images, const Numbers& maps,
                      const std::vector<int32_t>& steps, Size size, uint8_t* out) {
    static Pool pool(1, "auto");
    const auto numbers = exactly(shapes.data(), shapes.size()),
               map = exactly(maps.data(), maps.size());
    MaskTable table;
    table.shapes = numbers.get();
    table.objects = objects.data();
    table.images = images.data();
    table.maps = map.get();
    table.steps = steps.data();
    table.step_count = static_cast<int>(steps.size());
    table.count = static_cast<int>(images.size()) - 1;
    table.out = out;
    table.size = size;
    const auto job = mask_job(table);
    pool.run(*job);
    job->wait();
    std::vector<int> failed;
    for (const Failure& failure : job->take_failures()) failed.push_back(failure.row);
    return failed;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    ShapeChoices choices(data, size);
    const Size out = {1 + choices.byte() % 64, 1 + choices.byte() % 64};
    const int kinds = choices.byte(), count = 1 + choices.byte() % 3;
    std::vector<int32_t> steps = {3, 1};
    if (kinds & 1) steps.insert(steps.end(), {2, 4, 0});
    if (kinds & 2) steps.insert(steps.end(), {3, 1});
    if (kinds & 4) steps.insert(steps.end(), {2, 4});
    steps.push_back(3);
    Numbers shapes, maps;
    std::vector<int64_t> objects = {0}, images = {0};
    for (int i = 0; i < count; ++i) {
        const Size source = {1 + choices.byte() % 100, 1 + choices.byte() % 100};
        Size now = source;
        bool first = true;
        for (size_t step = 0; step < steps.size(); ++step) {
            const Size next = step + 1 == steps.size()
                                  ? out
                                  : Size{1 + choices.byte() % 90, 1 + choices.byte() % 90};
            if (steps[step] == 3 && first) {
                const double whole[kStepNumbers] = {0,
                                                    0,
                                                    static_cast<double>(source.width),
                                                    static_cast<double>(source.height),
                                                    static_cast<double>(source.width),
                                                    static_cast<double>(source.height),
                                                    0,
                                                    0,
                                                    static_cast<double>(source.width),
                                                    static_cast<double>(source.height),
                                                    0,
                                                    0};
                maps.insert(maps.end(), whole, whole + kStepNumbers);
                first = false;
            } else if (steps[step] == 3) {
                put_geometry(maps, choices, now, next);
            } else if (steps[step] == 1) {
                for (int n = 0; n < kStepNumbers; ++n) maps.push_back(choices.number(2));
            } else {
                if (steps[step] == 4) now = next;
                put_matrix(maps, choices, next);
            }
        }
        if (choices.byte() < 8)
            maps[static_cast<size_t>(choices.byte()) % maps.size()] = choices.any_double();
        for (int n = choices.byte() % 4; n > 0; --n) {
            put_object(shapes, choices, source);
            objects.push_back(static_cast<int64_t>(shapes.size()));
        }
        images.push_back(static_cast<int64_t>(objects.size()) - 1);
    }
    const size_t pixels = static_cast<size_t>(out.height) * static_cast<size_t>(out.width);
    const size_t bytes = (objects.size() - 1) * pixels;
    const std::unique_ptr<uint8_t[]> masks(new uint8_t[bytes]);
    std::memset(masks.get(), 7, bytes);
    const auto failed = draw(shapes, objects, images, maps, steps, out, masks.get());
    for (size_t i = 0; i < bytes; ++i) require(masks[i] <= 1, "neither 0 nor 1");
    for (const int row : failed) {
        const uint8_t* from =
            masks.get() + static_cast<size_t>(images[static_cast<size_t>(row)]) * pixels;
        const uint8_t* to =
            masks.get() + static_cast<size_t>(images[static_cast<size_t>(row) + 1]) * pixels;
        require(std::all_of(from, to, [](uint8_t value) { return value == 0; }),
                "a mask of a failure");
    }
    if (objects.size() == 1) return 0;
    const Numbers runs = runs_of(masks.get(), out);
    const double width = out.width, height = out.height;
    const Numbers still = {0, 0, width, height, width, height, 0, 0, width, height, 0, 0};
    const std::unique_ptr<uint8_t[]> again(new uint8_t[pixels]);
    require(draw(runs, {0, static_cast<int64_t>(runs.size())}, {0, 1}, still, {3}, out, again.get())
                .empty(),
            "its own run lengths fail");
    require(std::equal(again.get(), again.get() + pixels, masks.get()), "drawn otherwise again");
    return 0;
}
