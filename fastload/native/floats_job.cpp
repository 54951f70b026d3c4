#include <algorithm>

#include "colour_loops.hpp"
#include "floats.hpp"

namespace fastload {
namespace {

size_t values_of(Size size) {
    return static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
}

const ColourLoops& best_loops() { return *colour_loops(can_fuse_colour()).front(); }

// A row is an image.
class FloatsJob final : public Job {
  public:
    FloatsJob(const FloatImages& images, const FloatTable& table)
        : Job(images.count, 1), images_(images), table_(table), loops_(best_loops()) {}

  private:
    Outcome run(Worker& worker, int row) override {
        loops_.change_floats(images_, table_, row,
                             grow(worker.floats, floats_needed(images_, table_)));
        return {};
    }
    void blank(int) noexcept override {}

    const FloatImages images_;
    const FloatTable table_;
    const ColourLoops& loops_;
};

template <typename T>
class TurnMasksJob final : public Job {
  public:
    TurnMasksJob(const ClassMasks<T>& masks, const TurnTable& table)
        : Job(masks.count, 1), masks_(masks), table_(table), loops_(best_loops()) {}

  private:
    Outcome run(Worker&, int row) override {
        const auto at = static_cast<size_t>(row);
        const Size in = masks_.size, out = masks_.out_size;
        const T* from = masks_.masks + values_of(in) * at;
        T* to = masks_.out + values_of(out) * at;
        if (table_.rows[row]) {
            const double* const matrix = table_.matrices + 4 * at;
            if constexpr (sizeof(T) == 1) {
                loops_.turn_mask(from, in, to, out, matrix);
            } else {
                loops_.turn_wide_mask(from, in, to, out, matrix);
            }
            return {};
        }
        const auto width = static_cast<size_t>(in.width);
        from += static_cast<size_t>(in.height / 2 - out.height / 2) * width +
                static_cast<size_t>(in.width / 2 - out.width / 2);
        for (int y = 0; y < out.height; ++y, from += width, to += out.width)
            std::copy_n(from, out.width, to);
        return {};
    }
    void blank(int) noexcept override {}

    const ClassMasks<T> masks_;
    const TurnTable table_;
    const ColourLoops& loops_;
};

}  // namespace

size_t floats_needed(const FloatImages& images, const FloatTable& table) {
    const auto channels = static_cast<size_t>(images.channels);
    const size_t plane = values_of(images.out_size),
                 planes = images.channels_last ? channels * plane : 0;
    const size_t whole = table.turn.matrices != nullptr ? channels * values_of(images.size) : 0;
    // What steps and mirroring need: a plane, or the rows of `blur_plane`.
    const size_t rows = 4 * static_cast<size_t>(images.out_size.width) + kBlurTaps;
    return planes + std::max({whole, plane, rows});
}

std::shared_ptr<Job> floats_job(const FloatImages& images, const FloatTable& table) {
    return std::make_shared<FloatsJob>(images, table);
}

template <typename T>
std::shared_ptr<Job> turn_masks_job(const ClassMasks<T>& masks, const TurnTable& table) {
    return std::make_shared<TurnMasksJob<T>>(masks, table);
}
template std::shared_ptr<Job> turn_masks_job(const ClassMasks<uint8_t>&, const TurnTable&);
template std::shared_ptr<Job> turn_masks_job(const ClassMasks<uint16_t>&, const TurnTable&);

}  // namespace fastload
