#include "exif.hpp"
#include "jobs.hpp"

namespace fastload {
namespace {

using device::Left;

// Plans the crop of each image for a GPU.
class PlanJob final : public Job {
  public:
    PlanJob(std::unique_ptr<EncodedSource> images, const PlanTable& table)
        : Job(images->count(), 1), images_(std::move(images)), table_(table) {}

  private:
    Outcome run(Worker& worker, int row) override {
        Bytes file;
        if (Outcome got = images_->get(row, worker.bytes, file); !got.ok()) return got;
        const auto at = static_cast<size_t>(row);
        device::PlannedCrop& planned = (*table_.crops)[at];
        planned.left = plan(file, row, planned);
        return {};
    }

    Left plan(const Bytes& file, int row, device::PlannedCrop& planned) const {
        jpeg::Frame frame;
        if (jpeg::read_frame(file.data, file.size, frame) != jpeg::Reason::none || !frame.one_scan)
            return Left::kind;
        const Size image = {frame.height, frame.width};
        if (!table_.limits.check(image).ok()) return Left::kind;
        if (table_.exif_orientation && jpeg_orientation(file.data, file.size) != 1)
            return Left::turned;
        if (!resolve(table_.geometries, row, image, table_.size, planned.geometry).ok())
            return Left::box;
        device::Planner planner;
        return planner.plan(frame, file.data, file.size, *table_.index, planned.geometry.box,
                            table_.most_blocks, planned.plan);
    }

    void blank(int row) noexcept override {
        (*table_.crops)[static_cast<size_t>(row)].left = Left::kind;
    }

    const std::unique_ptr<EncodedSource> images_;
    const PlanTable table_;
};

}  // namespace

std::shared_ptr<Job> plan_job(std::unique_ptr<EncodedSource> images, const PlanTable& table) {
    return std::make_shared<PlanJob>(std::move(images), table);
}

}  // namespace fastload
