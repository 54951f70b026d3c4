#include "colour_loops.hpp"

namespace fastload {
namespace {

class RecolourJob final : public ColourJob {
  public:
    RecolourJob(const ColourImages& images, const ColourTable& table, bool fused)
        : ColourJob(images), table_(table), loops_(*colour_loops(fused).front()) {}

  private:
    Outcome run(Worker& worker, int row) override {
        loops_.recolour(table_, row, images_.size, images_.channels, at(row), worker.scratch,
                        worker.floats);
        return {};
    }

    const ColourTable table_;
    const ColourLoops& loops_;
};

class BlurJob final : public ColourJob {
  public:
    BlurJob(const ColourImages& images, const BlurTable& table, bool fused)
        : ColourJob(images), table_(table), loops_(*colour_loops(fused).front()) {}

  private:
    Outcome run(Worker& worker, int row) override {
        if (table_.rows && !table_.rows[row]) return {};
        loops_.blur(table_, row, images_.count, images_.size, images_.channels, at(row),
                    worker.scratch, worker.floats);
        return {};
    }

    const BlurTable table_;
    const ColourLoops& loops_;
};

class RecompressJob final : public ColourJob {
  public:
    RecompressJob(const ColourImages& images, const RecompressTable& table)
        : ColourJob(images), table_(table) {}

  private:
    Outcome run(Worker& worker, int row) override {
        const int quality = table_.qualities[row];
        if (quality > 0) {
            worker.recompressor.run(at(row), images_.size, images_.channels, quality,
                                    table_.blue_first);
        }
        return {};
    }

    const RecompressTable table_;
};

}  // namespace

bool can_fuse_colour() {
#if defined(FASTLOAD_X86)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#elif defined(FASTLOAD_ARM64)
    return true;
#else
    return false;
#endif
}

std::vector<const ColourLoops*> colour_loops(bool fused) {
    if (!fused) return {&kSeparateColour};
    std::vector<const ColourLoops*> found;
    if (!can_fuse_colour()) return found;
#if defined(FASTLOAD_X86)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        found.push_back(&kFusedColour512);
#endif
    found.push_back(&kFusedColour);
    return found;
}

std::shared_ptr<Job> colour_job(const ColourImages& images, const ColourTable& table, bool fused) {
    return std::make_shared<RecolourJob>(images, table, fused);
}

std::shared_ptr<Job> blur_job(const ColourImages& images, const BlurTable& table, bool fused) {
    return std::make_shared<BlurJob>(images, table, fused);
}

std::shared_ptr<Job> recompress_job(const ColourImages& images, const RecompressTable& table) {
    return std::make_shared<RecompressJob>(images, table);
}

}  // namespace fastload
