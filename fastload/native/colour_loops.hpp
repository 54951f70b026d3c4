// The loops of the colour operations, compiled once per instruction set (colour_target.cpp), and
// functions that give them memory for intermediate values.
//
// What is compiled for several instruction sets takes raw pointers, and calls no function template
// that may be compiled out of line, such as std::vector::resize: the linker keeps one copy of such
// a function for the whole program, which could be the one with instructions that the processor
// lacks.
#pragma once

#include <vector>

#include "colour.hpp"
#include "floats.hpp"
#include "noise.hpp"

namespace fastload {

struct LabTables;

// Numbers from a row of `blur` to the next, for rows of so many values.
constexpr size_t blur_pitch(size_t line) { return (line + 15) / 16 * 16; }

// Bytes of the planes of an image that are wider by kBorder columns on either side, and of what is
// read beyond the last of them.
constexpr int kBorder = 2;
constexpr size_t kReadBeyond = 64;
constexpr size_t bordered_bytes(Size size, int channels) {
    return static_cast<size_t>(size.height) * (static_cast<size_t>(size.width) + 2 * kBorder) *
               static_cast<size_t>(channels) +
           kReadBeyond;
}

// Each works on image `row` of the tables, in place; its pixels are packed. They throw nothing.
struct ColourLoops {
    // `scratch`: two bytes for each value of the image, then `bordered_bytes`; `floats`: one for
    // each value, if table.weights.
    void (*recolour)(const ColourTable& table, int row, Size size, int channels, uint8_t* pixels,
                     uint8_t* scratch, float* floats);
    // `count`: images of the table. `floats`: begin at a multiple of 64 bytes: table.down_taps + 1
    // rows of `blur_pitch`, a row, and table.across_taps - 1 pixels.
    void (*blur)(const BlurTable& table, int row, int count, Size size, int channels,
                 uint8_t* pixels, float* floats);
    // The image is mirrored at its borders. `scratch`: one byte for each value of the image and of
    // table.side - 1 columns more; `floats`: a row.
    void (*convolve)(const FilterTable& table, int row, Size size, int channels, uint8_t* pixels,
                     uint8_t* scratch, float* floats);
    // `side`: odd, kMostMedian at the most. `scratch`: as of convolve.
    void (*median)(int side, Size size, int channels, uint8_t* pixels, uint8_t* scratch);
    // `count` packed RGB pixels to L*a*b* in bytes (clahe.hpp), and back.
    void (*to_lab)(const LabTables& tables, const uint8_t* rgb, size_t count, uint8_t* lightness,
                   uint8_t* a, uint8_t* b);
    void (*from_lab)(const LabTables& tables, const uint8_t* lightness, const uint8_t* a,
                     const uint8_t* b, size_t count, uint8_t* rgb);
    // `count` values in place: the bilinear mean of what four tables of 256 make of each, those of
    // the tiles above it, left and right, and below it. `weights`: of the right ones.
    void (*mix_tables)(const uint8_t* const* tables, const float* weights, float below,
                       size_t count, uint8_t* values);
    void (*add_noise)(const NoiseTable& table, int row, Size size, int channels, uint8_t* pixels);
    // As ConvertTable, `count` packed pixels of three channels.
    void (*convert)(const ConvertTable& table, const uint8_t* pixels, size_t count, float* out);
    // The first `count` normal numbers of a key, and those of a box of counters. These and the
    // noise are the same for all instruction sets, with and without fused multiply-add.
    void (*normals)(uint64_t key, size_t count, float* out);
    void (*box_normals)(uint64_t key, const CounterBox& box, float* out);
    // Makes image `row`. `memory`: `floats_needed`.
    void (*change_floats)(const FloatImages& images, const FloatTable& table, int row,
                          float* memory);
    // A mask turned by a matrix of a TurnTable, of 8 and of 16 bits.
    void (*turn_mask)(const uint8_t* mask, Size in, uint8_t* out, Size out_size, const double* m);
    void (*turn_wide_mask)(const uint16_t* mask, Size in, uint16_t* out, Size out_size,
                           const double* m);
};

// The loops that this processor runs, the fastest first: those with fused multiply-add, or those
// without. Never empty unless `fused` and not `can_fuse_colour`.
std::vector<const ColourLoops*> colour_loops(bool fused);

// Memory for intermediate values, which is kept between images.
struct ColourMemory {
    std::vector<uint8_t>& scratch;
    std::vector<float>& floats;
};

// Call the loops with as much memory as they need. Throw std::bad_alloc.
void recolour_image(const ColourLoops& loops, const ColourTable& table, int row, Size size,
                    int channels, uint8_t* pixels, ColourMemory memory);
void blur_image(const ColourLoops& loops, const BlurTable& table, int row, int count, Size size,
                int channels, uint8_t* pixels, ColourMemory memory);

void convolve_image(const ColourLoops& loops, const FilterTable& table, int row, Size size,
                    int channels, uint8_t* pixels, ColourMemory memory);
void median_image(const ColourLoops& loops, int side, Size size, int channels, uint8_t* pixels,
                  ColourMemory memory);

// Without and with fused multiply-add.
extern const ColourLoops kSeparateColour;
extern const ColourLoops kFusedColour;
#if defined(FASTLOAD_X86)
extern const ColourLoops kFusedColour512;
extern const ColourLoops kFusedColour512Bytes;  // with AVX-512 VBMI and VBMI2
#endif

}  // namespace fastload
