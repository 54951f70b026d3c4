// What lies in local folders, listed by several threads (fastload/sources/listing.py): a listing of
// a million files is then bound by the file system, not by Python.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fastload {

// Which names are images, as fastload/sources/image_files.py says. All in lower case.
struct ImageNames {
    std::vector<std::string> endings;   // a name that ends with one of these is an image
    std::vector<std::string> suffixes;  // so is one whose last suffix (".gif") is one of these
    std::vector<std::string> never;     // whole names that are never data, files or folders
};

// What lies in some folders, in the order of these.
struct Listing {
    std::string images;           // paths of the images, one after the other
    std::vector<int64_t> ends;    // where each path ends in `images`
    std::vector<int64_t> counts;  // images of each folder
    // (number of the folder, name): folders in it; and all that is neither image nor folder, or is
    // never data. In the order of the file system.
    std::vector<std::pair<int64_t, std::string>> folders, others;
    // Whether something is there that only Python judges: a link to a folder, a name that is no
    // UTF-8, a folder that cannot be read. Nothing else is of use then.
    bool odd = false;
};

// Lists `folders`, which are relative to `root` ("": root itself). Paths of images begin with the
// folder as it was given; those of a folder are in the order of their bytes, which is Python's
// order of the strings. At most `threads` threads work.
Listing list_folders(const std::string& root, const std::vector<std::string>& folders,
                     const ImageNames& names, int threads);

// The modification time and the time of the last change of folders, relative to `root`, in
// nanoseconds since 1970, the inode and the device: four numbers a folder, zeros where there is
// none.
std::vector<int64_t> folder_stamps(const std::string& root, const std::vector<std::string>& folders,
                                   int threads);

}  // namespace fastload
