// Files of the system by their numbers. Paths are the system's bytes, on Windows UTF-8. What fails
// returns -1 or false and sets errno; std::generic_category() has the words for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fastload::files {

enum class Use { read, change };  // change: read and write

// Opens a file that is there. A named pipe is not waited for; no child program inherits it.
int open(const std::string& path, Use use);
void close(int file) noexcept;

struct About {
    bool is_regular = false, is_folder = false;
    int64_t bytes = 0;                // its length
    int64_t on_disk = 0;              // what it takes there [bytes]; less where it has holes
    uint64_t device = 0, number = 0;  // no two files have both
};
bool look(int file, About& about);

// Reads `size` bytes from `offset` on, or those that there are. Returns how many.
int64_t read_at(int file, int64_t offset, void* into, size_t size);
bool write_at(int file, int64_t offset, const void* from, size_t size);
bool resize(int file, int64_t bytes);

// Asks the system to read `length` bytes ahead, 0 for all that follow. If it does not, only the
// later read takes longer.
void read_ahead(int file, int64_t offset, int64_t length);

// Makes a file that was not there, to be read and changed: `path`, to which it adds an ending.
int create_beside(std::string& path);
// Gives a file a second name, or, where the file system has no hard links, another one. A file that
// has the name already keeps it.
bool give_name(const std::string& path, const std::string& name);
void remove(const std::string& path) noexcept;

// Takes the lock of a file, which is held until the file is closed. False, with EWOULDBLOCK, where
// it is held by a file of another call of `open`, of this process or another.
bool lock(int file);

}  // namespace fastload::files
