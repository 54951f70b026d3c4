// How near the native core comes to the limit: decoding the same crops by the same library, without reading files,
// resampling or output. Measured by the clock and by processor time: the second is steadier on a busy machine.
//
//     cmake -S . -B build -DFASTLOAD_TOOLS=ON && cmake --build build
//     build/native_limit FOLDER [threads=2] [rounds=15] [simd=auto] [contestant]
//
// A contestant (0 to 4, in the order printed) runs alone, for a profiler; with rounds=0 it waits for a line of input
// before each round, and answers with images, seconds and processor seconds (benchmarks/peers does that). FOLDER is
// searched for .jpg and .jpeg files. All contestants take the same random resized crops (224, as for ImageNet) on the
// same pool of threads, in turn within each round; rates are medians over the rounds with the quartiles, ratios are
// medians of the ratios within a round.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include <time.h>

#include "decode_job.hpp"

namespace {

using namespace fastload;

constexpr int kBatch = 64;
constexpr Size kSize = {224, 224};

struct Dataset {
    std::vector<std::string> paths;
    std::vector<std::vector<uint8_t>> contents;
    std::vector<uint8_t> blob;
    std::vector<int64_t> ends;
};

Dataset load(const char* folder) {
    Dataset data;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
        std::string suffix = entry.path().extension().string();
        std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
        if (suffix == ".jpg" || suffix == ".jpeg") data.paths.push_back(entry.path().string());
    }
    std::sort(data.paths.begin(), data.paths.end());
    for (const std::string& path : data.paths) {
        std::ifstream file(path, std::ios::binary);
        data.contents.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        data.blob.insert(data.blob.end(), path.begin(), path.end());
        data.ends.push_back(static_cast<int64_t>(data.blob.size()));
    }
    return data;
}

class NoSink final : public RowSink {
  public:
    void take(const uint8_t* const*, int) override {}
    void restart() override {}
};

// The limit: header, box, region decode by libjpeg-turbo, or by our own decoder. From files it includes reading them.
class LimitJob final : public Job {
  public:
    LimitJob(std::unique_ptr<EncodedSource> images, std::shared_ptr<const GeometrySource> geometries, bool own)
        : Job(images->count(), 1), images_(std::move(images)), geometries_(std::move(geometries)), own_(own) {}

  private:
    Outcome run(Worker& worker, int row) override {
        Bytes bytes;
        if (Outcome read = images_->get(row, worker.bytes, bytes, INT64_MAX); !read.ok()) return read;
        worker.decoder.use_libjpeg(!own_);
        if (Outcome opened = worker.decoder.open(bytes.data, bytes.size, {}); !opened.ok()) return opened;
        Geometry geometry;
        if (Outcome placed = geometries_->resolve(row, worker.decoder.header().size, geometry); !placed.ok()) {
            return placed;
        }
        NoSink sink;
        Outcome outcome = worker.decoder.read(geometry.box, false, sink);
        worker.decoder.use_libjpeg(false);
        return outcome;
    }
    void blank(int) noexcept override {}

    std::unique_ptr<EncodedSource> images_;
    std::shared_ptr<const GeometrySource> geometries_;
    bool own_;
};

// One epoch of random crops over the data set, the same for every contestant.
struct Epoch {
    std::vector<int64_t> rows;
    std::vector<double> uniforms;
    std::unique_ptr<bool[]> flips;

    Epoch(size_t images, uint64_t seed) {
        std::mt19937_64 random(seed);
        std::uniform_real_distribution<double> uniform(0.0, 1.0);
        const size_t count = (std::max<size_t>(images, 1024) + kBatch - 1) / kBatch * kBatch;
        flips = std::make_unique<bool[]>(2 * count);
        for (size_t i = 0; i < count; ++i) {
            rows.push_back(static_cast<int64_t>(i % images));
            for (int k = 0; k < RandomResizedCropPlan::kUniforms; ++k) uniforms.push_back(uniform(random));
            flips[2 * i] = uniform(random) < 0.5;
        }
        std::shuffle(rows.begin(), rows.end(), random);
    }
};

enum class Contestant { limit_memory, limit_files, core_memory, core_files, own_memory };
constexpr Contestant kContestants[] = {Contestant::limit_memory, Contestant::limit_files, Contestant::core_memory,
                                       Contestant::core_files, Contestant::own_memory};
constexpr const char* kNames[] = {"limit, from memory", "limit, from files", "core, from memory", "core, from files",
                                  "own region, from memory"};
constexpr int kCount = 5;

double processor_seconds() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Rate {
    double per_second = 0.0;            // images by the clock
    double per_processor_second = 0.0;  // images per second of one processor
};

Rate measure(Pool& pool, const Dataset& data, const Epoch& epoch, Contestant contestant,
                         std::vector<std::vector<uint8_t>>& outputs) {
    RandomResizedCropPlan plan;
    plan.size = kSize;
    plan.log_ratio_low = std::log(plan.ratio_low);
    plan.log_ratio_high = std::log(plan.ratio_high);
    const auto start = std::chrono::steady_clock::now();
    const double processor_start = processor_seconds();
    std::vector<std::shared_ptr<Job>> flying;
    size_t failures = 0;
    auto land = [&] {
        flying.front()->wait();
        failures += flying.front()->take_failures().size();
        flying.erase(flying.begin());
    };
    for (size_t first = 0; first < epoch.rows.size(); first += kBatch) {
        if (flying.size() == outputs.size()) land();
        const bool files = contestant == Contestant::limit_files || contestant == Contestant::core_files;
        std::unique_ptr<EncodedSource> images;
        if (files) {
            images = std::make_unique<EncodedFiles>(PathRows{
                "", data.blob.data(), data.ends.data(), epoch.rows.data() + first, nullptr, nullptr, kBatch});
        } else {
            std::vector<Bytes> rows;
            for (int i = 0; i < kBatch; ++i) {
                const auto& content = data.contents[static_cast<size_t>(epoch.rows[first + static_cast<size_t>(i)])];
                rows.push_back({content.data(), content.size()});
            }
            images = std::make_unique<EncodedBuffers>(std::move(rows));
        }
        auto crops = std::make_shared<RandomResizedCrops>(epoch.uniforms.data() + first * RandomResizedCropPlan::kUniforms,
                                                  epoch.flips.get() + 2 * first, plan);
        if (contestant != Contestant::core_memory && contestant != Contestant::core_files) {
            flying.push_back(std::make_shared<LimitJob>(std::move(images), crops, contestant == Contestant::own_memory));
        } else {
            Output out;
            out.base = outputs[first / kBatch % outputs.size()].data();
            out.size = kSize;
            flying.push_back(std::make_shared<DecodeJob>(
                std::move(images), std::vector<View>{{crops, ResampleOptions{}, out}}, DecodeOptions{}));
        }
        pool.submit(flying.back());
    }
    while (!flying.empty()) land();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (failures > 0) {
        std::fprintf(stderr, "%zu images failed\n", failures);
        std::exit(1);
    }
    const auto images = static_cast<double>(epoch.rows.size());
    return {images / seconds.count(), images / (processor_seconds() - processor_start)};
}

bool next_line() {
    int c = std::getchar();
    while (c != '\n' && c != EOF) c = std::getchar();
    return c != EOF;
}

double quantile(std::vector<double> values, double q) {
    std::sort(values.begin(), values.end());
    return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s FOLDER [threads=2] [rounds=15] [simd=auto] [contestant]\n", argv[0]);
        return 2;
    }
    const Dataset data = load(argv[1]);
    if (data.paths.empty()) {
        std::fprintf(stderr, "no .jpg or .jpeg files under %s\n", argv[1]);
        return 1;
    }
    const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
    const int rounds = argc > 3 ? std::atoi(argv[3]) : 15;
    Pool pool(threads, argc > 4 ? argv[4] : "auto");
    std::vector<std::vector<uint8_t>> outputs(3, std::vector<uint8_t>(size_t{3} * kBatch * kSize.height * kSize.width));

    if (argc > 5) {
        const auto contestant = static_cast<Contestant>(std::clamp(std::atoi(argv[5]), 0, kCount - 1));
        for (int round = 0; round < rounds || (rounds == 0 && next_line()); ++round) {
            const Epoch epoch(data.paths.size(), static_cast<uint64_t>(round));
            const Rate rate = measure(pool, data, epoch, contestant, outputs);
            if (rounds > 0) continue;
            const auto images = static_cast<double>(epoch.rows.size());
            std::printf("%.0f %.6f %.6f\n", images, images / rate.per_second, images / rate.per_processor_second);
            std::fflush(stdout);
        }
        return 0;
    }

    std::vector<double> rates[kCount], ratios[kCount], processor_ratios[kCount];
    for (int round = 0; round <= rounds; ++round) {  // the first one warms up
        const Epoch epoch(data.paths.size(), static_cast<uint64_t>(round));
        Rate rate[kCount];
        for (const Contestant contestant : kContestants) {
            rate[static_cast<int>(contestant)] = measure(pool, data, epoch, contestant, outputs);
        }
        if (round == 0) continue;
        for (int i = 0; i < kCount; ++i) {
            rates[i].push_back(rate[i].per_second);
            ratios[i].push_back(rate[i].per_second / rate[0].per_second);
            processor_ratios[i].push_back(rate[i].per_processor_second / rate[0].per_processor_second);
        }
    }
    std::printf("%zu files, %d threads, %s, %d rounds; ratios to the limit from memory\n", data.paths.size(), threads,
                pool.simd(), rounds);
    for (int i = 0; i < kCount; ++i) {
        std::printf("%-24s %7.0f images/s (quartiles %.0f to %.0f)   ratio %.3f (%.3f to %.3f), processor time %.3f\n",
                    kNames[i], quantile(rates[i], 0.5), quantile(rates[i], 0.25), quantile(rates[i], 0.75),
                    quantile(ratios[i], 0.5), quantile(ratios[i], 0.25), quantile(ratios[i], 0.75),
                    quantile(processor_ratios[i], 0.5));
    }
    return 0;
}
