#include "answer_head.hpp"

#include <algorithm>
#include <array>
#include <cstring>
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

// Of RFC 7693, section 2.6 and appendix C: where words are taken from, and the first state.
constexpr uint8_t kSigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
constexpr std::array<uint64_t, 8> kFirst = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

uint64_t rotated(uint64_t word, int bits) { return word >> bits | word << (64 - bits); }

// BLAKE2b of a text without a key: its first 8 bytes, where so many are asked for.
std::array<uint8_t, 8> blake2b_8(std::string_view text) {
    std::array<uint64_t, 8> h = kFirst;
    h[0] ^= 0x01010000 ^ 8;
    size_t at = 0;
    bool last;
    do {
        const size_t here = std::min<size_t>(128, text.size() - at);
        uint8_t block[128] = {};
        std::memcpy(block, text.data() + at, here);
        at += here;
        last = at == text.size();
        uint64_t words[16], v[16];
        for (int i = 0; i < 16; ++i) {
            words[i] = 0;
            for (int byte = 7; byte >= 0; --byte) words[i] = words[i] << 8 | block[8 * i + byte];
        }
        for (size_t i = 0; i < 8; ++i) {
            v[i] = h[i];
            v[i + 8] = kFirst[i];
        }
        v[12] ^= at;
        if (last) v[14] = ~v[14];
        const auto mix = [&](int a, int b, int c, int d, uint64_t x, uint64_t y) {
            v[a] += v[b] + x;
            v[d] = rotated(v[d] ^ v[a], 32);
            v[c] += v[d];
            v[b] = rotated(v[b] ^ v[c], 24);
            v[a] += v[b] + y;
            v[d] = rotated(v[d] ^ v[a], 16);
            v[c] += v[d];
            v[b] = rotated(v[b] ^ v[c], 63);
        };
        for (int round = 0; round < 12; ++round) {
            const uint8_t* s = kSigma[round % 10];
            for (int i = 0; i < 4; ++i)
                mix(i, i + 4, i + 8, i + 12, words[s[2 * i]], words[s[2 * i + 1]]);
            for (int i = 0; i < 4; ++i)
                mix(i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, words[s[8 + 2 * i]],
                    words[s[9 + 2 * i]]);
        }
        for (size_t i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
    } while (!last);
    std::array<uint8_t, 8> digest{};
    for (size_t i = 0; i < 8; ++i) digest[i] = static_cast<uint8_t>(h[0] >> 8 * i);
    return digest;
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

int64_t version_of(int64_t size, std::string_view etag) {
    if (etag.substr(0, 2) == "W/") etag.remove_prefix(2);
    while (!etag.empty() && etag.front() == '"') etag.remove_prefix(1);
    while (!etag.empty() && etag.back() == '"') etag.remove_suffix(1);
    const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 128; };
    if (etag.empty() || !std::all_of(etag.begin(), etag.end(), is_ascii)) return 0;
    std::string text = std::to_string(size);
    text.append(1, ' ').append(etag);
    uint64_t number = 0;
    for (const uint8_t byte : blake2b_8(text)) number = number << 8 | byte;
    return std::max<int64_t>(1, static_cast<int64_t>(number >> 1));
}

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
