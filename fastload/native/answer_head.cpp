#include "answer_head.hpp"

#include <algorithm>
#include <string_view>

namespace fastload {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Takes the digits at the beginning of `text` off it. -1: there are none, or more than 18.
int64_t take_number(std::string_view& text) {
    size_t digits = 0;
    int64_t value = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') {
        if (digits == 18) return -1;
        value = value * 10 + (text[digits++] - '0');
    }
    text.remove_prefix(digits);
    return digits > 0 ? value : -1;
}

bool take(std::string_view& text, char wanted) {
    if (text.empty() || text[0] != wanted) return false;
    text.remove_prefix(1);
    return true;
}

// `bytes first-last/total`, of which the total must be known.
void read_range(std::string_view text, AnswerHead& head) {
    constexpr std::string_view unit = "bytes ";
    if (text.substr(0, unit.size()) != unit) {
        head.odd = true;
        return;
    }
    text.remove_prefix(unit.size());
    const bool known = head.total >= 0;
    const int64_t first = take_number(text);
    const bool dash = take(text, '-');
    const int64_t last = take_number(text);
    const bool slash = take(text, '/');
    const int64_t total = take_number(text);
    if (first < 0 || !dash || last < first || !slash || total <= last || !text.empty() || known) {
        head.odd = true;
        return;
    }
    head.first = first;
    head.last = last;
    head.total = total;
}

void read_length(std::string_view text, AnswerHead& head) {
    const int64_t length = take_number(text);
    if (length < 0 || !text.empty() || (head.length >= 0 && head.length != length)) head.odd = true;
    head.length = length;
}

void keep(std::string_view value, std::string& where, AnswerHead& head) {
    if (value.size() > kLongestValue || (!where.empty() && where != value)) {
        head.odd = true;
        return;
    }
    where.assign(value);
}

bool says_bytes(std::string_view name) {
    return name == "content-md5" || name == "x-goog-hash" ||
           name.substr(0, 15) == "x-amz-checksum-";
}

void read_status(std::string_view line, AnswerHead& head) {
    head = {};
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) return;
    line.remove_prefix(space + 1);
    const int64_t status = take_number(line);
    head.status = status >= 100 && status <= 999 ? static_cast<int>(status) : 0;
}

}  // namespace

void read_head_line(const char* line, size_t size, AnswerHead& head) {
    const std::string_view text = trimmed({line, size});
    if (text.substr(0, 5) == "HTTP/") {
        read_status(text, head);
        return;
    }
    const size_t colon = text.find(':');
    if (colon == std::string_view::npos || colon > 64) return;
    std::string name(text.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    const std::string_view value = trimmed(text.substr(colon + 1));
    if (name == "content-length") {
        read_length(value, head);
    } else if (name == "content-range") {
        read_range(value, head);
    } else if (name == "etag") {
        keep(value, head.etag, head);
    } else if (name == "last-modified") {
        keep(value, head.modified, head);
    } else if (name == "retry-after") {
        keep(value, head.retry_after, head);
    } else if (says_bytes(name)) {
        if (head.checksums.size() + name.size() + value.size() > 2 * kLongestValue) {
            head.odd = true;
            return;
        }
        head.checksums.append(name).append(1, ':').append(value).append(1, '\n');
    }
}

}  // namespace fastload
