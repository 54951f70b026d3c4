// The bindings of boxes and masks of objects, and of masks of classes.
#include <algorithm>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include "bindings.hpp"
#include "boxes.hpp"
#include "class_counts.hpp"
#include "masks.hpp"

namespace fastload {

using namespace nb::literals;

namespace {

// Throws ValueError unless the offsets ascend from 0 to `end`.
void require_offsets(const Input<int64_t, 1>& offsets, size_t end, const char* message) {
    require(offsets.size() > 0 && offsets.data()[0] == 0 &&
                offsets.data()[offsets.size() - 1] == static_cast<int64_t>(end),
            message);
    for (size_t i = 1; i < offsets.size(); ++i)
        require(offsets.data()[i - 1] <= offsets.data()[i], message);
}

std::unique_ptr<Ticket> draw_masks(Pool& pool, Input<double, 1> shapes, Input<int64_t, 1> objects,
                                   Input<int64_t, 1> images, Input<double, 3> maps,
                                   Input<int32_t, 1> steps, Array<uint8_t, 3> out, bool here) {
    require_offsets(objects, shapes.size(), "objects: offsets of shapes are needed");
    require_offsets(images, objects.size() - 1, "images: offsets of objects are needed");
    require(out.shape(0) == objects.size() - 1, "out (T, H, W) is needed");
    require(maps.shape(0) == images.size() - 1 && maps.shape(2) == 2 &&
                maps.shape(1) * 2 == steps.size() * kStepNumbers,
            "maps (B, 6 * steps, 2) are needed");
    MaskTable table;
    table.shapes = shapes.data();
    table.objects = objects.data();
    table.images = images.data();
    table.maps = maps.data();
    table.steps = steps.data();
    table.step_count = static_cast<int>(steps.size());
    table.count = static_cast<int>(images.size() - 1);
    table.out = out.data();
    table.size = size_in(out.shape(1), out.shape(2));
    return submit(pool, mask_job(table), kept(shapes, objects, images, maps, steps, out), here);
}

void move_boxes_by(Input<double, 3> maps, Input<int32_t, 1> steps, Array<double, 3> boxes,
                   Array<bool, 2> kept) {
    require(maps.shape(0) == boxes.shape(0) && maps.shape(2) == 2 &&
                maps.shape(1) * 2 == steps.size() * kStepNumbers,
            "maps (B, 6 * steps, 2) are needed");
    require(boxes.shape(2) == 4, "boxes (B, N, 4) are needed");
    require(kept.shape(0) == boxes.shape(0) && kept.shape(1) == boxes.shape(1), "kept (B, N)");
    BoxTable table;
    table.maps = maps.data();
    table.steps = steps.data();
    table.step_count = static_cast<int64_t>(steps.size());
    table.count = static_cast<int64_t>(boxes.shape(0));
    table.each = static_cast<int64_t>(boxes.shape(1));
    table.boxes = boxes.data();
    table.kept = kept.data();
    move_boxes(table);
}

// `sizes`: (2, B) heights and widths of the images; (2, 1) if all have one size.
void centre_boxes_of(Input<float, 2> boxes, Input<int64_t, 1> offsets, Input<int64_t, 2> sizes,
                     bool one_size, Optional<int64_t, 1> labels, Array<float, 2> out) {
    const size_t count = boxes.shape(0), columns = labels ? 6 : 4;
    require_offsets(offsets, count, "offsets: of all boxes are needed");
    const size_t images = offsets.size() - 1;
    require(boxes.shape(1) == 4, "boxes (T, 4) are needed");
    require(sizes.shape(0) == 2 && sizes.shape(1) == (one_size ? 1 : images),
            "sizes (2, B), or (2, 1), are needed");
    require(!labels || labels->size() == count, "labels (T,) are needed");
    require(out.shape(0) == count && out.shape(1) == columns, "out (T, 4), or (T, 6), is needed");
    CentreTable table;
    table.boxes = boxes.data();
    table.offsets = offsets.data();
    table.heights = sizes.data();
    table.widths = sizes.data() + sizes.shape(1);
    table.labels = data_of(labels);
    table.images = static_cast<int64_t>(images);
    table.one_size = one_size;
    table.out = out.data();
    centre_boxes(table);
}

void count_classes_of(Input<uint8_t, 3> mask, Input<int32_t, 1> rows, Input<int32_t, 1> columns,
                      Array<int64_t, 1> out) {
    require(mask.shape(2) == 1 && out.size() == 256, "a mask (H, W, 1) and out (256,) are needed");
    const auto lie_in = [](const Input<int32_t, 1>& places, size_t end) {
        return std::all_of(places.data(), places.data() + places.size(), [end](int32_t place) {
            return place >= 0 && static_cast<size_t>(place) < end;
        });
    };
    require(lie_in(rows, mask.shape(0)) && lie_in(columns, mask.shape(1)),
            "rows and columns must lie in the mask");
    WithoutGil released;
    count_classes(mask.data(), static_cast<int64_t>(mask.shape(1)), rows.data(),
                  static_cast<int64_t>(rows.size()), columns.data(),
                  static_cast<int64_t>(columns.size()), out.data());
}

}  // namespace

void bind_objects(nb::module_& m, nb::class_<Pool>& pool) {
    m.def("centre_boxes", &centre_boxes_of, "boxes"_a, "offsets"_a, "sizes"_a, "one_size"_a,
          "labels"_a.none(), "out"_a);
    m.def("count_classes", &count_classes_of, "mask"_a, "rows"_a, "columns"_a, "out"_a);
    m.def("move_boxes", &move_boxes_by, "maps"_a, "steps"_a, "boxes"_a, "kept"_a);
    pool.def("draw_masks", &draw_masks, "shapes"_a, "objects"_a, "images"_a, "maps"_a, "steps"_a,
             "out"_a, "here"_a);
}

}  // namespace fastload
