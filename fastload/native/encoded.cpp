#include "encoded.hpp"

#include <algorithm>

namespace fastload {
namespace {

// Samples announced ahead: some tens of milliseconds of decoding on a core, the latency of a slow disk.
constexpr int kAhead = 16;

}  // namespace

std::string PathRows::path(int row) const {
    const int64_t string = rows[row];
    const int64_t begin = string > 0 ? ends[string - 1] : 0;
    std::string result;
    result.reserve(root.size() + 1 + static_cast<size_t>(ends[string] - begin));
    if (!root.empty()) result.append(root).push_back('/');
    result.append(reinterpret_cast<const char*>(blob) + begin, static_cast<size_t>(ends[string] - begin));
    return result;
}

EncodedFiles::EncodedFiles(PathRows paths)
    : paths_(std::move(paths)), slots_(std::make_unique<Slot[]>(static_cast<size_t>(paths_.count))) {}

void EncodedFiles::expect(int row) {
    Slot& slot = slots_[static_cast<size_t>(row)];
    if (slot.stage.load(std::memory_order_relaxed) != untouched) return;
    File file;
    if (!file.open(paths_.path(row).c_str()).ok()) return;  // `get` will say why
    file.expect(paths_.offsets ? paths_.offsets[row] : 0, paths_.lengths ? paths_.lengths[row] : -1);
    // Only one thread comes here for a row: the one that took the row `kAhead` before it.
    slot.file = std::move(file);
    int8_t stage = untouched;
    if (!slot.stage.compare_exchange_strong(stage, ready, std::memory_order_acq_rel)) slot.file.close();
}

Outcome EncodedFiles::get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t most) {
    if (row == 0) {
        for (int next = 1; next < std::min(kAhead, paths_.count); ++next) expect(next);
    }
    if (row + kAhead < paths_.count) expect(row + kAhead);

    File file;
    Slot& slot = slots_[static_cast<size_t>(row)];
    if (slot.stage.exchange(taken, std::memory_order_acq_rel) == ready) {
        file = std::move(slot.file);
    } else if (Outcome opened = file.open(paths_.path(row).c_str()); !opened.ok()) {
        return opened;
    }
    const int64_t offset = paths_.offsets ? paths_.offsets[row] : 0;
    const int64_t length = paths_.lengths ? paths_.lengths[row] : -1;
    size_t size = 0;
    Outcome outcome = file.read(offset, length, most, buffer, size);
    bytes = {buffer.data(), size};
    return outcome;
}

}  // namespace fastload
