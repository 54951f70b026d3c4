#include "libjpeg.hpp"

#include <stdexcept>
#include <string>

#ifdef FASTLOAD_LIBJPEG
#include <dlfcn.h>
#endif

namespace fastload {
namespace {

#ifdef FASTLOAD_LIBJPEG

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("libjpeg has no ") + name + "; it is too old");
}

LibJpeg load() {
    // By its path; if the system has moved it since the build, by its name.
    void* library = dlopen(FASTLOAD_LIBJPEG, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = dlopen(FASTLOAD_LIBJPEG_NAME, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    LibJpeg found;
    find(library, "jpeg_std_error", found.std_error);
    find(library, "jpeg_CreateDecompress", found.create_decompress);
    find(library, "jpeg_destroy_decompress", found.destroy_decompress);
    find(library, "jpeg_abort_decompress", found.abort_decompress);
    find(library, "jpeg_mem_src", found.mem_src);
    find(library, "jpeg_read_header", found.read_header);
    find(library, "jpeg_start_decompress", found.start_decompress);
    find(library, "jpeg_read_scanlines", found.read_scanlines);
    find(library, "jpeg_crop_scanline", found.crop_scanline);
    find(library, "jpeg_skip_scanlines", found.skip_scanlines);
    find(library, "jpeg_input_complete", found.input_complete);
    return found;
}

#else  // linked: a static library, or a platform whose linker binds symbols to their library

LibJpeg load() {
    return {jpeg_std_error,   jpeg_CreateDecompress, jpeg_destroy_decompress, jpeg_abort_decompress,
            jpeg_mem_src,     jpeg_read_header,      jpeg_start_decompress,   jpeg_read_scanlines,
            jpeg_crop_scanline, jpeg_skip_scanlines, jpeg_input_complete};
}

#endif

}  // namespace

const LibJpeg& libjpeg() {
    static const LibJpeg found = load();
    return found;
}

}  // namespace fastload
