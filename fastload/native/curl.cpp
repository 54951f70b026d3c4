#include "curl.hpp"

#include <cstdio>
#include <cstring>

#include <dlfcn.h>

namespace fastload {
namespace {

#ifdef __APPLE__
constexpr const char* kNames[] = {"libcurl.4.dylib", "/usr/lib/libcurl.4.dylib"};
#else
constexpr const char* kNames[] = {"libcurl.so.4"};
#endif

template <typename Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

bool find_all(void* library, Curl& curl) {
    return find(library, "curl_global_init", curl.global_init) &&
           find(library, "curl_version", curl.version) &&
           find(library, "curl_easy_init", curl.easy_init) &&
           find(library, "curl_easy_setopt", curl.easy_setopt) &&
           find(library, "curl_easy_getinfo", curl.easy_getinfo) &&
           find(library, "curl_easy_cleanup", curl.easy_cleanup) &&
           find(library, "curl_easy_strerror", curl.easy_strerror) &&
           find(library, "curl_multi_init", curl.multi_init) &&
           find(library, "curl_multi_setopt", curl.multi_setopt) &&
           find(library, "curl_multi_add_handle", curl.multi_add_handle) &&
           find(library, "curl_multi_remove_handle", curl.multi_remove_handle) &&
           find(library, "curl_multi_socket_action", curl.multi_socket_action) &&
           find(library, "curl_multi_info_read", curl.multi_info_read) &&
           find(library, "curl_multi_cleanup", curl.multi_cleanup) &&
           find(library, "curl_slist_append", curl.slist_append) &&
           find(library, "curl_slist_free_all", curl.slist_free_all);
}

bool is_new_enough(const char* version) {
    int major = 0, minor = 0;
    if (std::sscanf(version, "libcurl/%d.%d", &major, &minor) != 2) return false;
    return major > 7 || (major == 7 && minor >= 62);
}

const Curl* open_library() {
    for (const char* name : kNames) {
        void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        static Curl curl;
        if (library != nullptr && find_all(library, curl) && is_new_enough(curl.version()) &&
            curl.global_init(kCurlGlobalDefault) == kCurlOk)
            return &curl;
    }
    return nullptr;
}

}  // namespace

const Curl* curl_library() {
    static const Curl* const found = open_library();
    return found;
}

}  // namespace fastload
