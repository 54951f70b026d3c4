// What is read of the header of an HTTP answer. libcurl splits it into lines; their bytes are a
// stranger's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fastload {

// Bytes of a value that are kept; a longer one is left out, and the header is odd.
constexpr size_t kLongestValue = 1024;

struct AnswerHead {
    int status = 0;
    int64_t length = -1;                        // Content-Length; -1: not given
    int64_t first = -1, last = -1, total = -1;  // Content-Range: bytes first-last/total
    // A number makes no sense, a value is too long, or two lines of one name disagree.
    bool odd = false;
    std::string etag, modified, retry_after;
    // Lines `name:value\n` of what says something of the bytes of the object: content-md5,
    // x-goog-hash and x-amz-checksum-*; names in small letters.
    std::string checksums;
};

// Reads one line. A status line begins a new header: after a redirect, or an answer 100.
void read_head_line(const char* line, size_t size, AnswerHead& head);

}  // namespace fastload
