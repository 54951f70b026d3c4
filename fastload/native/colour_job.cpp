#include <memory>

#include "clahe.hpp"
#include "colour_loops.hpp"
#include "cpu.hpp"

namespace fastload {
namespace {

size_t values_of(Size size, int channels) {
    return static_cast<size_t>(size.height) * static_cast<size_t>(size.width) *
           static_cast<size_t>(channels);
}

// The jobs of colour.hpp; a row is an image.

class RecolourJob final : public ColourJob {
  public:
    RecolourJob(const ColourImages& images, const ColourTable& table, bool fused)
        : ColourJob(images), table_(table), loops_(*colour_loops(fused).front()) {}

  private:
    Outcome run(Worker& worker, int row) override {
        recolour_image(loops_, table_, row, images_.size, images_.channels, at(row),
                       {worker.scratch, worker.floats});
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
        blur_image(loops_, table_, row, images_.count, images_.size, images_.channels, at(row),
                   {worker.scratch, worker.floats});
        return {};
    }

    const BlurTable table_;
    const ColourLoops& loops_;
};

class ConvolveJob final : public ColourJob {
  public:
    ConvolveJob(const ColourImages& images, const FilterTable& table, bool fused)
        : ColourJob(images), table_(table), loops_(*colour_loops(fused).front()) {}

  private:
    Outcome run(Worker& worker, int row) override {
        if (table_.rows && !table_.rows[row]) return {};
        convolve_image(loops_, table_, row, images_.size, images_.channels, at(row),
                       {worker.scratch, worker.floats});
        return {};
    }

    const FilterTable table_;
    const ColourLoops& loops_;
};

class MedianJob final : public ColourJob {
  public:
    MedianJob(const ColourImages& images, const MedianTable& table)
        : ColourJob(images), table_(table), loops_(*colour_loops(can_fuse_colour()).front()) {}

  private:
    Outcome run(Worker& worker, int row) override {
        const int side = table_.sides[row];
        if (side > 1) {
            median_image(loops_, side, images_.size, images_.channels, at(row),
                         {worker.scratch, worker.floats});
        }
        return {};
    }

    const MedianTable table_;
    const ColourLoops& loops_;
};

class ClaheJob final : public ColourJob {
  public:
    ClaheJob(const ColourImages& images, const ClaheTable& table)
        : ColourJob(images), table_(table), loops_(*colour_loops(can_fuse_colour()).front()) {}

  private:
    Outcome run(Worker& worker, int row) override {
        const double limit = table_.limits[row];
        if (limit > 0.0) {
            equalize_tiles(loops_, at(row), images_.size, images_.channels, limit, table_.down,
                           table_.across, worker.scratch);
        }
        return {};
    }

    const ClaheTable table_;
    const ColourLoops& loops_;
};

// A row is an image.
class ConvertJob final : public Job {
  public:
    ConvertJob(const ConvertImages& images, const ConvertTable& table, bool fused)
        : Job(images.count, 1),
          images_(images),
          table_(table),
          loops_(*colour_loops(fused).front()) {}

  private:
    Outcome run(Worker&, int row) override {
        const size_t width = static_cast<size_t>(images_.size.width), line = 3 * width;
        const uint8_t* pixels = images_.pixels + images_.image_step * row;
        float* out = images_.out +
                     line * static_cast<size_t>(images_.size.height) * static_cast<size_t>(row);
        for (int y = 0; y < images_.size.height; ++y, pixels += images_.row_step, out += line)
            loops_.convert(table_, pixels, width, out);
        return {};
    }
    void blank(int) noexcept override {}

    const ConvertImages images_;
    const ConvertTable table_;
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
    const Processor& has = this_processor();
    return has.avx2 && has.fma;
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
    const Processor& has = this_processor();
    if (has.avx512f && has.avx512bw && has.avx512vl && has.avx512dq) {
        if (has.avx512vbmi && has.avx512vbmi2) found.push_back(&kFusedColour512Bytes);
        found.push_back(&kFusedColour512);
    }
#endif
    found.push_back(&kFusedColour);
    return found;
}

void recolour_image(const ColourLoops& loops, const ColourTable& table, int row, Size size,
                    int channels, uint8_t* pixels, ColourMemory memory) {
    const size_t values = values_of(size, channels);
    uint8_t* const scratch = grow(memory.scratch, 2 * values + bordered_bytes(size, channels));
    float* const floats = table.weights != nullptr ? grow(memory.floats, values) : nullptr;
    loops.recolour(table, row, size, channels, pixels, scratch, floats);
}

void blur_image(const ColourLoops& loops, const BlurTable& table, int row, int count, Size size,
                int channels, uint8_t* pixels, ColourMemory memory) {
    constexpr size_t kAlignment = 64, kMore = kAlignment / sizeof(float);
    const size_t line = values_of({1, size.width}, channels),
                 floats = (static_cast<size_t>(table.down_taps) + 1) * blur_pitch(line) + line +
                          values_of({1, table.across_taps - 1}, channels);
    void* begin = grow(memory.floats, floats + kMore);
    size_t bytes = (floats + kMore) * sizeof(float);
    auto* const aligned =
        static_cast<float*>(std::align(kAlignment, floats * sizeof(float), begin, bytes));
    loops.blur(table, row, count, size, channels, pixels, aligned);
}

void convolve_image(const ColourLoops& loops, const FilterTable& table, int row, Size size,
                    int channels, uint8_t* pixels, ColourMemory memory) {
    const size_t line = values_of({1, size.width}, channels);
    uint8_t* const scratch =
        grow(memory.scratch, values_of({size.height, size.width + table.side - 1}, channels));
    loops.convolve(table, row, size, channels, pixels, scratch, grow(memory.floats, line));
}

void median_image(const ColourLoops& loops, int side, Size size, int channels, uint8_t* pixels,
                  ColourMemory memory) {
    uint8_t* const scratch =
        grow(memory.scratch, values_of({size.height, size.width + side - 1}, channels));
    loops.median(side, size, channels, pixels, scratch);
}

std::shared_ptr<Job> colour_job(const ColourImages& images, const ColourTable& table, bool fused) {
    return std::make_shared<RecolourJob>(images, table, fused);
}

std::shared_ptr<Job> blur_job(const ColourImages& images, const BlurTable& table, bool fused) {
    return std::make_shared<BlurJob>(images, table, fused);
}

std::shared_ptr<Job> convolve_job(const ColourImages& images, const FilterTable& table,
                                  bool fused) {
    return std::make_shared<ConvolveJob>(images, table, fused);
}

std::shared_ptr<Job> median_job(const ColourImages& images, const MedianTable& table) {
    return std::make_shared<MedianJob>(images, table);
}

std::shared_ptr<Job> clahe_job(const ColourImages& images, const ClaheTable& table) {
    return std::make_shared<ClaheJob>(images, table);
}

std::shared_ptr<Job> convert_job(const ConvertImages& images, const ConvertTable& table,
                                 bool fused) {
    return std::make_shared<ConvertJob>(images, table, fused);
}

std::shared_ptr<Job> recompress_job(const ColourImages& images, const RecompressTable& table) {
    return std::make_shared<RecompressJob>(images, table);
}

}  // namespace fastload
