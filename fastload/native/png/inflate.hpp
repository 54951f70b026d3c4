// A zlib stream to bytes, as many at a time as are wanted: by ISA-L where the build found it, else by zlib.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace fastload::png {

// The data of the IDAT chunks from `next` on, one behind the other; their lengths were checked before.
struct Pieces {
    const uint8_t* next = nullptr;
    int count = 0;

    // The next piece that is not empty; false if there is none.
    bool take(const uint8_t** data, size_t* size);
};

class Inflater {
  public:
    Inflater();
    ~Inflater();
    Inflater(const Inflater&) = delete;
    Inflater& operator=(const Inflater&) = delete;

    // A new stream.
    void begin(Pieces pieces);
    // The next `size` bytes; false if the stream is damaged or ends before.
    bool read(uint8_t* out, size_t size);
    // Whether the stream ends here, with the right checksum.
    bool ends();

    static const char* library();

  private:
    size_t some(uint8_t* out, size_t size);

    struct State;
    std::unique_ptr<State> state_;
    Pieces pieces_;
};

// As PNG's chunks have it (ISO 3309).
uint32_t checksum(const uint8_t* data, size_t size);

}  // namespace fastload::png
