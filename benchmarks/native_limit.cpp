// The limit of `benchmarks/peers`: reading the header of a JPEG and decoding a region of it by
// libjpeg-turbo, with no resampling and no output, on random resized crops as for ImageNet.
//
//     cmake -S . -B build -DFASTLOAD_TOOLS=ON && cmake --build build
//     yes | head -15 | build/native_limit FOLDER THREADS
//
// Each line of input is answered by an epoch over all .jpg and .jpeg files below FOLDER, which are
// held in memory: images, seconds, seconds of processor.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <time.h>

#include "jobs.hpp"

namespace {

using namespace fastload;

constexpr int kBatch = 64;
constexpr size_t kFlying = 3;  // batches that are queued

class NoSink final : public RowSink {
  public:
    void take(const uint8_t* const*, int) override {}
    void restart() override {}
};

class LimitJob final : public Job {
  public:
    LimitJob(std::unique_ptr<EncodedSource> images, GeometrySource geometries)
        : Job(images->count(), 1), images_(std::move(images)), geometries_(std::move(geometries)) {}

  private:
    Outcome run(Worker& worker, int row) override {
        Bytes bytes;
        if (Outcome read = images_->get(row, worker.bytes, bytes); !read.ok()) return read;
        worker.decoder.use_libjpeg(true);
        if (Outcome opened = worker.decoder.open(bytes.data, bytes.size, {}); !opened.ok())
            return opened;
        Geometry geometry;
        if (Outcome placed = geometries_(row, worker.decoder.header().size, geometry);
            !placed.ok()) {
            return placed;
        }
        NoSink sink;
        return worker.decoder.read(geometry.box, false, sink);
    }
    void blank(int) noexcept override {}

    std::unique_ptr<EncodedSource> images_;
    GeometrySource geometries_;
};

double processor_seconds() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) {
        std::fprintf(stderr, "usage: %s FOLDER THREADS\n", argv[0]);
        return 2;
    }
    std::vector<std::vector<uint8_t>> contents;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[1])) {
        std::string suffix = entry.path().extension().string();
        for (char& letter : suffix)
            letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        if (suffix != ".jpg" && suffix != ".jpeg") continue;
        std::ifstream file(entry.path(), std::ios::binary);
        contents.emplace_back(std::istreambuf_iterator<char>(file),
                              std::istreambuf_iterator<char>());
    }
    if (contents.empty()) {
        std::fprintf(stderr, "no .jpg or .jpeg files under %s\n", argv[1]);
        return 1;
    }
    RandomResizedCropPlan plan;
    plan.size = {224, 224};
    plan.log_ratio_low = std::log(plan.ratio_low);
    plan.log_ratio_high = std::log(plan.ratio_high);

    Pool pool(std::atoi(argv[2]), "auto");
    std::mt19937_64 random(0);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    const size_t count = (std::max<size_t>(contents.size(), 1024) + kBatch - 1) / kBatch * kBatch;
    std::vector<size_t> rows(count);
    std::vector<double> uniforms(count * kResizedCropUniforms);
    const auto flips = std::make_unique<bool[]>(2 * count);
    for (std::string line; std::getline(std::cin, line);) {
        for (size_t i = 0; i < count; ++i) rows[i] = i % contents.size();
        for (double& value : uniforms) value = uniform(random);
        std::shuffle(rows.begin(), rows.end(), random);
        const auto start = std::chrono::steady_clock::now();
        const double processor_start = processor_seconds();
        std::vector<std::shared_ptr<Job>> flying;
        size_t failures = 0;
        for (size_t first = 0; first < count || !flying.empty(); first += kBatch) {
            if (flying.size() == kFlying || first >= count) {
                flying.front()->wait();
                failures += flying.front()->take_failures().size();
                flying.erase(flying.begin());
            }
            if (first >= count) continue;
            std::vector<Bytes> images;
            for (size_t i = first; i < first + kBatch; ++i) {
                images.push_back({contents[rows[i]].data(), contents[rows[i]].size()});
            }
            GeometrySource crops = random_resized_crops(
                uniforms.data() + first * kResizedCropUniforms, flips.get() + 2 * first, plan);
            flying.push_back(std::make_shared<LimitJob>(open_buffers(std::move(images)), crops));
            pool.submit(flying.back());
        }
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        if (failures > 0) {
            std::fprintf(stderr, "%zu images failed\n", failures);
            return 1;
        }
        std::printf("%zu %.6f %.6f\n", count, seconds.count(),
                    processor_seconds() - processor_start);
        std::fflush(stdout);
    }
    return 0;
}
