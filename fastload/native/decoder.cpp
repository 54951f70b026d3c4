#include "decoder.hpp"

#include <cstring>

#include "kernels.hpp"

namespace fastload {

Decoder::Decoder(const Kernels& kernels, DecoderCounts* counts)
    : jpeg_(kernels, counts)
#ifdef FASTLOAD_PNG
    , png_(*kernels.png, counts == nullptr ? nullptr : &counts->png)
#endif
#ifdef FASTLOAD_WEBP
    , webp_(counts == nullptr ? nullptr : &counts->webp)
#endif
{
}

Outcome Decoder::open(const uint8_t* data, size_t size, const DecodeLimits& limits) {
    close();
    chosen_ = &jpeg_;
#ifdef FASTLOAD_PNG
    if (size >= 8 && std::memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0) chosen_ = &png_;
#endif
#ifdef FASTLOAD_WEBP
    if (size >= 12 && std::memcmp(data, "RIFF", 4) == 0 && std::memcmp(data + 8, "WEBP", 4) == 0) chosen_ = &webp_;
#endif
    return chosen_->open(data, size, limits);
}

const std::map<std::string, std::string>& Decoder::formats() {
    static const std::map<std::string, std::string> found = {
#ifdef FASTLOAD_PNG
        {"PNG", png::Inflater::library()},
#endif
#ifdef FASTLOAD_WEBP
        {"WEBP", "libwebp"},
#endif
    };
    return found;
}

}  // namespace fastload
