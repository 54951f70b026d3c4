#include "noise.hpp"

#include <vector>

#include "colour_loops.hpp"

namespace fastload {
namespace {

const ColourLoops& best_loops() { return *colour_loops(can_fuse_colour()).front(); }

class NoiseJob final : public ColourJob {
  public:
    NoiseJob(const ColourImages& images, const NoiseTable& table)
        : ColourJob(images), table_(table), loops_(best_loops()) {}

  private:
    Outcome run(Worker&, int row) override {
        if (table_.rows && !table_.rows[row]) return {};
        loops_.add_noise(table_, row, images_.size, images_.channels, at(row));
        return {};
    }

    const NoiseTable table_;
    const ColourLoops& loops_;
};

class NormalsJob final : public Job {
  public:
    NormalsJob(const uint64_t* keys, int count, int64_t each, float* out)
        : Job(count, 1), keys_(keys), each_(each), out_(out), loops_(best_loops()) {}

  private:
    Outcome run(Worker&, int row) override {
        loops_.normals(keys_[row], static_cast<size_t>(each_), out_ + each_ * row);
        return {};
    }
    void blank(int) noexcept override {}

    const uint64_t* const keys_;
    const int64_t each_;
    float* const out_;
    const ColourLoops& loops_;
};

class BoxNormalsJob final : public Job {
  public:
    BoxNormalsJob(const uint64_t* keys, const CounterBox* boxes, int count, float* out)
        : Job(count, 1), keys_(keys), boxes_(boxes), loops_(best_loops()) {
        for (int i = 0; i < count; ++i) {
            outs_.push_back(out);
            out += boxes[i].planes * boxes[i].lines * boxes[i].width;
        }
    }

  private:
    Outcome run(Worker&, int row) override {
        const auto at = static_cast<size_t>(row);
        loops_.box_normals(keys_[at], boxes_[at], outs_[at]);
        return {};
    }
    void blank(int) noexcept override {}

    const uint64_t* const keys_;
    const CounterBox* const boxes_;
    std::vector<float*> outs_;  // where each box begins
    const ColourLoops& loops_;
};

}  // namespace

std::shared_ptr<Job> noise_job(const ColourImages& images, const NoiseTable& table) {
    return std::make_shared<NoiseJob>(images, table);
}

std::shared_ptr<Job> normals_job(const uint64_t* keys, int count, int64_t each, float* out) {
    return std::make_shared<NormalsJob>(keys, count, each, out);
}

std::shared_ptr<Job> box_normals_job(const uint64_t* keys, const CounterBox* boxes, int count,
                                     float* out) {
    return std::make_shared<BoxNormalsJob>(keys, boxes, count, out);
}

}  // namespace fastload
