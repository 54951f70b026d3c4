// What is read of the header of an HTTP answer. libcurl splits it into lines; their bytes are a
// stranger's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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

// A positive number of 63 bits for a version of an object, from its size [bytes] and ETag: as
// `version_of` of fastload/stores/seen.py, BLAKE2b (RFC 7693) with 8 bytes of output. 0 for an ETag
// of nothing, and one that is not ASCII, of which Python finds out.
int64_t version_of(int64_t size, std::string_view etag);

// Reads one line. A status line begins a new header: after a redirect, or an answer 100.
void read_head_line(const char* line, size_t size, AnswerHead& head);

}  // namespace fastload
