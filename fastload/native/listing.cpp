#include "listing.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>

#include <dirent.h>
#include <sys/stat.h>

namespace fastload {
namespace {

std::string path_of(const std::string& root, const std::string& folder) {
    return folder.empty() ? root : root + "/" + folder;
}

// Calls `work(row)` for each of `count` rows, in the calling thread and up to `threads` - 1 others.
// Throws std::bad_alloc where one of them did.
template <typename Work>
void for_each_row(size_t count, int threads, Work work) {
    std::atomic<size_t> next{0};
    std::atomic<bool> no_memory{false};
    const auto run = [&] {
        try {
            for (size_t row; (row = next++) < count && !no_memory;) work(row);
        } catch (const std::bad_alloc&) {
            no_memory = true;
        }
    };
    std::vector<std::thread> others;
    try {
        while (others.size() + 1 < std::min(count, static_cast<size_t>(std::max(threads, 1))))
            others.emplace_back(run);
    } catch (const std::system_error&) {  // no more threads are to be had
    } catch (const std::bad_alloc&) {
    }
    run();
    for (std::thread& other : others) other.join();
    if (no_memory) throw std::bad_alloc();
}

// -- Names ----------------------------------------------------------------------------------------

std::string lower(std::string_view name) {
    std::string found(name);
    for (char& letter : found)
        if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
    return found;
}

bool has(const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

// As Python's os.path.splitext: the dots that a name begins with are none of a suffix.
std::string_view suffix_of(std::string_view name) {
    const size_t dot = name.rfind('.'), first = name.find_first_not_of('.');
    if (dot == std::string_view::npos || first == std::string_view::npos || dot < first) return {};
    return name.substr(dot);
}

bool is_image(const ImageNames& names, std::string_view lowered) {
    for (const std::string& ending : names.endings) {
        if (lowered.size() >= ending.size() &&
            lowered.compare(lowered.size() - ending.size(), ending.size(), ending) == 0)
            return true;
    }
    return has(names.suffixes, suffix_of(lowered));
}

// RFC 3629, section 4: no overlong forms, no surrogates, nothing above U+10FFFF.
bool is_utf8(std::string_view name) {
    const auto at = [&](size_t i) {
        return i < name.size() ? static_cast<unsigned char>(name[i]) : 0u;
    };
    for (size_t i = 0; i < name.size();) {
        const unsigned lead = at(i);
        const int more = lead < 0x80   ? 0
                         : lead < 0xC2 ? -1
                         : lead < 0xE0 ? 1
                         : lead < 0xF0 ? 2
                         : lead < 0xF5 ? 3
                                       : -1;
        if (more < 0) return false;
        for (int k = 1; k <= more; ++k)
            if ((at(i + static_cast<size_t>(k)) & 0xC0) != 0x80) return false;
        const unsigned second = at(i + 1);
        if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
            (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
            return false;
        i += static_cast<size_t>(more) + 1;
    }
    return true;
}

// -- One folder -----------------------------------------------------------------------------------

struct Folder {
    std::string names;                              // of images, one after the other, unsorted
    std::vector<std::pair<size_t, size_t>> images;  // (begin, length) in `names`
    std::vector<std::string> folders, others;
    bool odd = false;
};

enum class Kind { kFile, kFolder, kOdd };

Kind kind_of(const std::string& path, const dirent& entry) {
    if (entry.d_type == DT_DIR) return Kind::kFolder;
    if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return Kind::kFile;
    struct stat found;
    const std::string whole = path + "/" + entry.d_name;
    if (::lstat(whole.c_str(), &found) != 0) return Kind::kOdd;
    if (S_ISDIR(found.st_mode)) return Kind::kFolder;
    if (!S_ISLNK(found.st_mode)) return Kind::kFile;
    // A link to a folder may lead in a circle. One that leads nowhere is a file that cannot be
    // read.
    if (::stat(whole.c_str(), &found) == 0)
        return S_ISDIR(found.st_mode) ? Kind::kOdd : Kind::kFile;
    return errno == ENOENT || errno == ELOOP ? Kind::kFile : Kind::kOdd;
}

void list_one(const std::string& path, const ImageNames& names, Folder& folder) {
    DIR* open = ::opendir(path.c_str());
    if (open == nullptr) {
        folder.odd = true;
        return;
    }
    try {
        errno = 0;
        while (const dirent* entry = ::readdir(open)) {
            const std::string_view name(entry->d_name);
            if (name == "." || name == "..") continue;
            const std::string lowered = lower(name);
            const bool never = name.compare(0, 2, "._") == 0 || has(names.never, lowered);
            const Kind kind = never ? Kind::kFile : kind_of(path, *entry);
            if (kind == Kind::kOdd || !is_utf8(name)) {
                folder.odd = true;
                break;
            }
            if (never) {
                folder.others.emplace_back(name);
            } else if (kind == Kind::kFolder) {
                folder.folders.emplace_back(name);
            } else if (is_image(names, lowered)) {
                folder.images.emplace_back(folder.names.size(), name.size());
                folder.names += name;
            } else {
                folder.others.emplace_back(name);
            }
            errno = 0;
        }
        folder.odd = folder.odd || errno != 0;
    } catch (...) {
        ::closedir(open);
        throw;
    }
    ::closedir(open);
    const std::string& all = folder.names;
    std::sort(folder.images.begin(), folder.images.end(), [&](const auto& a, const auto& b) {
        return std::string_view(all).substr(a.first, a.second) <
               std::string_view(all).substr(b.first, b.second);
    });
}

}  // namespace

Listing list_folders(const std::string& root, const std::vector<std::string>& folders,
                     const ImageNames& names, int threads) {
    std::vector<Folder> found(folders.size());
    std::atomic<bool> odd{false};
    for_each_row(folders.size(), threads, [&](size_t row) {
        if (odd) return;
        list_one(path_of(root, folders[row]), names, found[row]);
        if (found[row].odd) odd = true;
    });
    Listing listing;
    listing.odd = odd;
    if (odd) return listing;
    size_t bytes = 0, images = 0;
    for (size_t row = 0; row < found.size(); ++row) {
        bytes += found[row].names.size() + found[row].images.size() * (folders[row].size() + 1);
        images += found[row].images.size();
    }
    listing.images.reserve(bytes);
    listing.ends.reserve(images);
    listing.counts.reserve(found.size());
    for (size_t row = 0; row < found.size(); ++row) {
        Folder& folder = found[row];
        for (const auto& [begin, length] : folder.images) {
            if (!folders[row].empty()) listing.images.append(folders[row]).push_back('/');
            listing.images.append(folder.names, begin, length);
            listing.ends.push_back(static_cast<int64_t>(listing.images.size()));
        }
        const auto number = static_cast<int64_t>(row);
        listing.counts.push_back(static_cast<int64_t>(folder.images.size()));
        for (std::string& name : folder.folders)
            listing.folders.emplace_back(number, std::move(name));
        for (std::string& name : folder.others)
            listing.others.emplace_back(number, std::move(name));
        folder = Folder();
    }
    return listing;
}

std::vector<int64_t> folder_stamps(const std::string& root, const std::vector<std::string>& folders,
                                   int threads) {
    std::vector<int64_t> stamps(4 * folders.size(), 0);
    for_each_row(folders.size(), threads, [&](size_t row) {
        struct stat found;
        if (::stat(path_of(root, folders[row]).c_str(), &found) != 0 || !S_ISDIR(found.st_mode))
            return;
        const auto nanoseconds = [](const timespec& time) {
            return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
        };
#ifdef __APPLE__
        stamps[4 * row] = nanoseconds(found.st_mtimespec);
        stamps[4 * row + 1] = nanoseconds(found.st_ctimespec);
#else
        stamps[4 * row] = nanoseconds(found.st_mtim);
        stamps[4 * row + 1] = nanoseconds(found.st_ctim);
#endif
        stamps[4 * row + 2] = static_cast<int64_t>(found.st_ino);
        stamps[4 * row + 3] = static_cast<int64_t>(found.st_dev);
    });
    return stamps;
}

}  // namespace fastload
