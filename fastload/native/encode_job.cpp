#include "jobs.hpp"

namespace fastload {
namespace {

// Encodes one image; a job, as a Worker has the encoder.
class EncodeJob final : public Job {
  public:
    EncodeJob(const uint8_t* pixels, Size size, int quality, std::vector<uint8_t>& file)
        : Job(1, 1), pixels_(pixels), size_(size), quality_(quality), file_(file) {}

  private:
    Outcome run(Worker& worker, int) override {
        file_ = worker.encoder.run(pixels_, size_, quality_);
        return {};
    }

    void blank(int) noexcept override { file_.clear(); }

    const uint8_t* pixels_;
    Size size_;
    int quality_;
    std::vector<uint8_t>& file_;
};

}  // namespace

std::shared_ptr<Job> encode_job(const uint8_t* pixels, Size size, int quality,
                                std::vector<uint8_t>& file) {
    return std::make_shared<EncodeJob>(pixels, size, quality, file);
}

}  // namespace fastload
