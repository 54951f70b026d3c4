// Fuzz target: the header of an HTTP answer, of any bytes, in lines as libcurl gives them. What
// must hold, apart from no finding of the sanitizers:
//
// - numbers make sense, or the header is odd; values are no longer than they may be;
// - a version is a number of 63 bits, whatever the ETag, and that of the ETag in quotes;
// - a status line begins a new header: what comes after it is read as if nothing had been before.
#include "answer_head.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "choices.hpp"

using namespace fastload;

namespace {

AnswerHead read_lines(const std::vector<std::string>& lines) {
    AnswerHead head;
    for (const std::string& line : lines) {
        // Heap memory of exactly this size, so that a byte read beyond is seen.
        const std::vector<char> exact(line.begin(), line.end());
        read_head_line(exact.data(), exact.size(), head);
    }
    return head;
}

bool same(const AnswerHead& a, const AnswerHead& b) {
    return a.status == b.status && a.length == b.length && a.first == b.first && a.last == b.last &&
           a.total == b.total && a.odd == b.odd && a.etag == b.etag && a.modified == b.modified &&
           a.retry_after == b.retry_after && a.checksums == b.checksums;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<std::string> lines;
    for (size_t at = 0; at < size;) {
        const uint8_t* end = std::find(data + at, data + size, '\n');
        const auto next = std::min(size, static_cast<size_t>(end - data) + 1);
        lines.emplace_back(reinterpret_cast<const char*>(data) + at, next - at);
        at = next;
    }
    const AnswerHead head = read_lines(lines);
    require(head.status == 0 || (head.status >= 100 && head.status <= 999), "no status");
    require(head.length >= -1, "a length below 0");
    require(head.total == -1 ? head.first == -1 && head.last == -1
                             : 0 <= head.first && head.first <= head.last && head.last < head.total,
            "a range that there is not");
    for (const std::string* value : {&head.etag, &head.modified, &head.retry_after})
        require(value->size() <= kLongestValue, "a long value");
    require(head.checksums.size() <= 2 * kLongestValue + 8 * 1024, "long checksums");
    require(same(head, read_lines(lines)), "read in another way");

    const std::vector<char> etag(head.etag.begin(), head.etag.end());
    const int64_t version = version_of(head.length, {etag.data(), etag.size()});
    require(version >= 0, "a version below 0");
    require(
        head.etag.substr(0, 2) == "W/" || version == version_of(head.length, '"' + head.etag + '"'),
        "another version in quotes");

    std::vector<std::string> twice = lines;
    twice.emplace_back("HTTP/1.1 200 OK\r\n");
    twice.insert(twice.end(), lines.begin(), lines.end());
    std::vector<std::string> once = {"HTTP/1.1 200 OK\r\n"};
    once.insert(once.end(), lines.begin(), lines.end());
    require(same(read_lines(twice), read_lines(once)), "an old header is in a new one");
    return 0;
}
