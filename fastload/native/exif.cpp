#include "exif.hpp"

#include <algorithm>
#include <bitset>
#include <cstring>
#include <string_view>
#include <vector>

namespace fastload {
namespace {

constexpr int kUpright = 1;
constexpr int kAbsent = -1;  // no orientation in the EXIF data: XMP may have one

struct Span {
    const uint8_t* data = nullptr;
    size_t size = 0;

    bool starts_with(std::string_view text) const {
        return size >= text.size() && std::memcmp(data, text.data(), text.size()) == 0;
    }
    Span from(size_t at) const { return {data + at, size - at}; }
};

constexpr std::string_view kExif{"Exif\0\0", 6};
constexpr std::string_view kXmp{"http://ns.adobe.com/xap/1.0/\0", 29};

// Reads numbers of a TIFF structure. `at + bytes` must lie in the data.
class Numbers {
  public:
    Numbers(Span data, bool big) : data_(data), big_(big) {}

    uint64_t read(size_t at, size_t bytes) const {
        uint64_t value = 0;
        for (size_t i = 0; i < bytes; ++i)
            value = value << 8 | data_.data[at + (big_ ? i : bytes - 1 - i)];
        return value;
    }
    uint32_t u16(size_t at) const { return static_cast<uint32_t>(read(at, 2)); }
    uint32_t u32(size_t at) const { return static_cast<uint32_t>(read(at, 4)); }

  private:
    Span data_;
    bool big_;
};

// The types of TIFF 6.0, section 2, and of its supplements.
enum class Type : uint32_t {
    byte = 1,
    ascii = 2,
    u16 = 3,
    u32 = 4,
    ratio = 5,
    i8 = 6,
    undefined = 7,
    i16 = 8,
    i32 = 9,
    signed_ratio = 10,
    f32 = 11,
    f64 = 12,
    directory = 13,
    u64 = 16,
};

// Bytes of a value; 0: no such type.
size_t bytes_of(uint32_t type) {
    static constexpr size_t kBytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
    return type < std::size(kBytes) ? kBytes[type] : 0;
}

int checked(double value) {
    return value >= 1.0 && value <= 8.0 && value == static_cast<int>(value)
               ? static_cast<int>(value)
               : kUpright;
}

template <typename To, typename From>
To as(From bits) {
    To value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// The first number of a tag. Bytes and text are none. Numbers up to 8 are exact as doubles, and no
// other number becomes one of them, nor does a quotient of 32 bits.
int value_of(const Numbers& numbers, uint32_t type, size_t at) {
    const auto quotient = [](double above, double below) {
        return below == 0.0 ? kUpright : checked(above / below);
    };
    switch (static_cast<Type>(type)) {
        case Type::u16: return checked(numbers.u16(at));
        case Type::u32:
        case Type::directory: return checked(numbers.u32(at));
        case Type::u64: return checked(static_cast<double>(numbers.read(at, 8)));
        case Type::i8: return checked(as<int8_t>(static_cast<uint8_t>(numbers.read(at, 1))));
        case Type::i16: return checked(as<int16_t>(static_cast<uint16_t>(numbers.u16(at))));
        case Type::i32: return checked(as<int32_t>(numbers.u32(at)));
        case Type::ratio: return quotient(numbers.u32(at), numbers.u32(at + 4));
        case Type::signed_ratio:
            return quotient(as<int32_t>(numbers.u32(at)), as<int32_t>(numbers.u32(at + 4)));
        case Type::f32: return checked(static_cast<double>(as<float>(numbers.u32(at))));
        case Type::f64: return checked(as<double>(numbers.read(at, 8)));
        default: return kUpright;
    }
}

// Of EXIF data: a TIFF structure, perhaps after so many marks. kAbsent: they have no such tag.
// Data that do not begin as a TIFF are upright, whatever XMP says.
int in_exif(Span data, int marks = 2) {
    for (; marks > 0 && data.starts_with(kExif); --marks) data = data.from(kExif.size());
    if (data.size == 0) return kAbsent;
    if (data.size < 8) return kUpright;
    const bool big = data.starts_with({"MM\0\x2a", 4}) || data.starts_with({"MM\x2a\0", 4}) ||
                     data.starts_with({"MM\0\x2b", 4});
    if (!big && !data.starts_with({"II\x2a\0", 4}) && !data.starts_with({"II\0\x2a", 4}))
        return kUpright;
    const Numbers numbers(data, big);
    const size_t directory = numbers.u32(4);
    if (directory > data.size || data.size - directory < 2) return kAbsent;
    const uint32_t entries = numbers.u16(directory);
    std::bitset<1 << 16> seen;  // tags that have a value: the first one counts
    uint64_t outside = 0;       // bytes of values that do not lie in their entries
    for (uint32_t i = 0; i < entries; ++i) {
        const size_t entry = directory + 2 + 12 * size_t{i};
        if (entry > data.size || data.size - entry < 12) return kAbsent;
        const uint32_t tag = numbers.u16(entry), type = numbers.u16(entry + 2);
        const uint64_t bytes = uint64_t{numbers.u32(entry + 4)} * bytes_of(type);
        if (seen[tag] || bytes == 0) continue;
        size_t at = entry + 8;
        if (bytes > 4) {
            outside += bytes;
            if (outside > data.size) continue;
            at = numbers.u32(at);
            if (at > data.size || bytes > data.size - at) return kAbsent;  // cut off
        }
        constexpr uint32_t kOrientation = 0x0112;
        if (tag == kOrientation) return value_of(numbers, type, at);
        seen[tag] = true;
    }
    return kAbsent;
}

// Of XMP: what the first match of tiff:Orientation(="|>)([0-9]) says.
int in_xmp(Span data) {
    constexpr std::string_view kName = "tiff:Orientation";
    std::string_view text(reinterpret_cast<const char*>(data.data), data.size);
    for (size_t at = 0; (at = text.find(kName, at)) != text.npos;) {
        at += kName.size();
        std::string_view rest = text.substr(at);
        if (rest.substr(0, 1) == ">") {
            rest.remove_prefix(1);
        } else if (rest.substr(0, 2) == "=\"") {
            rest.remove_prefix(2);
        } else {
            continue;
        }
        if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return checked(rest[0] - '0');
    }
    return kUpright;
}

int in_either(Span exif, Span xmp) {
    const int found = in_exif(exif);
    return found != kAbsent ? found : in_xmp(xmp);
}

size_t big32(const uint8_t* at) {
    return size_t{at[0]} << 24 | size_t{at[1]} << 16 | size_t{at[2]} << 8 | at[3];
}
size_t little32(const uint8_t* at) {
    return size_t{at[0]} | size_t{at[1]} << 8 | size_t{at[2]} << 16 | size_t{at[3]} << 24;
}

}  // namespace

int jpeg_orientation(const uint8_t* data, size_t size) {
    Span exif, xmp;
    std::vector<uint8_t> joined;  // EXIF data of several segments
    for (size_t at = 2; at < size;) {
        if (data[at] != 0xff) {
            ++at;
            continue;
        }
        while (at < size && data[at] == 0xff) ++at;
        if (at == size) break;
        const uint8_t marker = data[at++];
        if (marker == 0xda || marker == 0xd9) break;  // start of scan, end of image
        if (marker <= 0x01 || (marker >= 0xd0 && marker <= 0xd8)) continue;
        if (size - at < 2) break;
        const size_t length = size_t{data[at]} << 8 | data[at + 1];
        if (length > size - at) break;
        if (marker == 0xe1 && length > 2) {
            const Span segment = {data + at + 2, length - 2};
            if (segment.starts_with(kXmp)) {
                xmp = segment.from(kXmp.size());
            } else if (segment.starts_with(kExif) && exif.data == nullptr) {
                exif = segment;
            } else if (segment.starts_with(kExif)) {
                if (joined.empty()) joined.assign(exif.data, exif.data + exif.size);
                joined.insert(joined.end(), segment.data + kExif.size(),
                              segment.data + segment.size);
                exif = {joined.data(), joined.size()};
            }
        }
        at += std::max<size_t>(length, 2);
    }
    return in_either(exif, xmp);
}

int png_orientation(const uint8_t* data, size_t size) {
    Span exif, xmp;
    bool other_exif = false, raw_profile = false, other_xmp = false;
    for (size_t at = 8; at <= size && size - at >= 12;) {
        const size_t length = big32(data + at);
        if (length > size - at - 12) break;
        const Span chunk = {data + at + 8, length}, kind = {data + at + 4, 4};
        at += 12 + length;
        if (kind.starts_with("IEND")) break;
        if (kind.starts_with("eXIf")) exif = chunk;
        const bool text = kind.starts_with("tEXt") || kind.starts_with("zTXt");
        const bool international = kind.starts_with("iTXt");
        if (!text && !international) continue;
        const auto* end =
            static_cast<const uint8_t*>(length == 0 ? nullptr : std::memchr(chunk.data, 0, length));
        const size_t key = end == nullptr ? length : static_cast<size_t>(end - chunk.data);
        const std::string_view name(reinterpret_cast<const char*>(chunk.data), key);
        other_exif |= name == "exif";
        raw_profile |= name == "Raw profile type exif";
        if (name != "XML:com.adobe.xmp") continue;
        other_xmp |= !international || xmp.data != nullptr;
        // The name, two bytes about compression, the language, the name in it, and the text.
        if (!international || length < key + 3) continue;
        other_xmp |= chunk.data[key + 1] != 0;
        size_t from = key + 3;
        int strings = 0;
        for (; strings < 2 && from < length; ++from) strings += chunk.data[from] == 0;
        if (strings == 2) xmp = chunk.from(from);
    }
    if (other_exif || (raw_profile && exif.data == nullptr)) return kOrientationUnknown;
    const int found = in_exif(exif, 1);
    if (found != kAbsent) return found;
    return other_xmp ? kOrientationUnknown : in_xmp(xmp);
}

int webp_orientation(const uint8_t* data, size_t size) {
    Span exif, xmp;
    // Metadata are in files of the extended format alone, which say that they have them.
    if (size < 30 || std::memcmp(data + 12, "VP8X", 4) != 0) return kUpright;
    constexpr uint8_t kHasExif = 8, kHasXmp = 4;
    const uint8_t flags = data[20];
    size = std::min(size, 8 + little32(data + 4));
    for (size_t at = 12; at <= size && size - at >= 8;) {
        const size_t length = little32(data + at + 4), left = size - at - 8;
        if (length > left) break;
        const Span chunk = {data + at + 8, length}, kind = {data + at, 4};
        if (kind.starts_with("EXIF") && (flags & kHasExif) != 0 && exif.data == nullptr)
            exif = chunk;
        if (kind.starts_with("XMP ") && (flags & kHasXmp) != 0 && xmp.data == nullptr) xmp = chunk;
        at += 8 + std::min(length + length % 2, left);
    }
    return in_either(exif, xmp);
}

}  // namespace fastload
