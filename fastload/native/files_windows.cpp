// Files of Windows: handles under numbers of the C library. Others may read, change, rename and
// remove a file that is open, as under POSIX.
#include <algorithm>
#include <cerrno>
#include <string>

#include <fcntl.h>
#include <io.h>
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include "files.hpp"

namespace fastload::files {
namespace {

// Sets errno to what Windows says; to EIO where POSIX has no word for it.
void note_error() {
    switch (::GetLastError()) {
        case ERROR_FILE_NOT_FOUND:
        case ERROR_PATH_NOT_FOUND:
        case ERROR_INVALID_NAME:
        case ERROR_BAD_NETPATH: errno = ENOENT; break;
        case ERROR_ACCESS_DENIED:
        case ERROR_SHARING_VIOLATION:
        case ERROR_WRITE_PROTECT: errno = EACCES; break;
        case ERROR_ALREADY_EXISTS:
        case ERROR_FILE_EXISTS: errno = EEXIST; break;
        case ERROR_LOCK_VIOLATION:
        case ERROR_IO_PENDING: errno = EWOULDBLOCK; break;
        case ERROR_DISK_FULL:
        case ERROR_HANDLE_DISK_FULL: errno = ENOSPC; break;
        case ERROR_TOO_MANY_OPEN_FILES: errno = EMFILE; break;
        case ERROR_INVALID_HANDLE: errno = EBADF; break;
        default: errno = EIO;
    }
}

bool noted() {
    note_error();
    return false;
}

// UTF-16 of UTF-8. Empty, with errno set, where it is none.
std::wstring wide(const std::string& text) {
    const int size = static_cast<int>(text.size());
    const int length =
        ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), size, nullptr, 0);
    std::wstring found(static_cast<size_t>(std::max(length, 0)), L'\0');
    ::MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.data(), size, found.data(), length);
    if (length <= 0) errno = ENOENT;
    return found;
}

HANDLE handle_of(int file) { return reinterpret_cast<HANDLE>(::_get_osfhandle(file)); }

int open_as(const std::string& path, Use use, DWORD how) {
    const std::wstring name = wide(path);
    if (name.empty()) return -1;
    // Backup semantics: a folder, too, is opened, and then said to be one.
    const HANDLE handle = ::CreateFileW(
        name.c_str(), use == Use::change ? GENERIC_READ | GENERIC_WRITE : GENERIC_READ,
        FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr, how,
        FILE_ATTRIBUTE_NORMAL | FILE_FLAG_BACKUP_SEMANTICS, nullptr);
    if (handle == INVALID_HANDLE_VALUE) {
        note_error();
        return -1;
    }
    const int file = ::_open_osfhandle(reinterpret_cast<intptr_t>(handle),
                                       _O_NOINHERIT | (use == Use::read ? _O_RDONLY : 0));
    if (file < 0) ::CloseHandle(handle);
    return file;
}

// Where in a file something is to happen.
OVERLAPPED place(int64_t offset) {
    OVERLAPPED found = {};
    found.Offset = static_cast<DWORD>(offset);
    found.OffsetHigh = static_cast<DWORD>(offset >> 32);
    return found;
}

DWORD piece(size_t size) { return static_cast<DWORD>(std::min<size_t>(size, 1 << 30)); }

uint64_t joined(DWORD high, DWORD low) { return uint64_t{high} << 32 | low; }

}  // namespace

int open(const std::string& path, Use use) { return open_as(path, use, OPEN_EXISTING); }

void close(int file) noexcept { ::_close(file); }

bool look(int file, About& about) {
    const HANDLE handle = handle_of(file);
    BY_HANDLE_FILE_INFORMATION found;
    if (::GetFileType(handle) != FILE_TYPE_DISK) {
        about = {};
        return true;
    }
    if (!::GetFileInformationByHandle(handle, &found)) return noted();
    FILE_STANDARD_INFO more = {};
    (void)::GetFileInformationByHandleEx(handle, FileStandardInfo, &more, sizeof more);
    const bool folder = (found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
    about = {!folder,
             folder,
             static_cast<int64_t>(joined(found.nFileSizeHigh, found.nFileSizeLow)),
             more.AllocationSize.QuadPart,
             found.dwVolumeSerialNumber,
             joined(found.nFileIndexHigh, found.nFileIndexLow)};
    return true;
}

int64_t read_at(int file, int64_t offset, void* into, size_t size) {
    size_t done = 0;
    while (done < size) {
        OVERLAPPED at = place(offset + static_cast<int64_t>(done));
        DWORD got = 0;
        if (!::ReadFile(handle_of(file), static_cast<char*>(into) + done, piece(size - done), &got,
                        &at)) {
            if (::GetLastError() == ERROR_HANDLE_EOF) break;
            note_error();
            return -1;
        }
        if (got == 0) break;
        done += got;
    }
    return static_cast<int64_t>(done);
}

bool write_at(int file, int64_t offset, const void* from, size_t size) {
    size_t done = 0;
    while (done < size) {
        OVERLAPPED at = place(offset + static_cast<int64_t>(done));
        DWORD put = 0;
        if (!::WriteFile(handle_of(file), static_cast<const char*>(from) + done, piece(size - done),
                         &put, &at))
            return noted();
        if (put == 0) {
            errno = EIO;
            return false;
        }
        done += put;
    }
    return true;
}

bool resize(int file, int64_t bytes) {
    FILE_END_OF_FILE_INFO end = {};
    end.EndOfFile.QuadPart = bytes;
    return ::SetFileInformationByHandle(handle_of(file), FileEndOfFileInfo, &end, sizeof end) ||
           noted();
}

void read_ahead(int, int64_t, int64_t) {}  // Windows takes no such advice for a range

int create_beside(std::string& path) {
    const std::string begin = path + '.';
    for (uint64_t number = ::GetTickCount64(), tries = 0; tries < 1000; ++number, ++tries) {
        path = begin + std::to_string(::GetCurrentProcessId()) + '-' + std::to_string(number);
        const int file = open_as(path, Use::change, CREATE_NEW);
        if (file >= 0 || errno != EEXIST) return file;
    }
    return -1;
}

bool give_name(const std::string& path, const std::string& name) {
    const std::wstring from = wide(path), to = wide(name);
    return ::CreateHardLinkW(to.c_str(), from.c_str(), nullptr) ||
           ::GetLastError() == ERROR_ALREADY_EXISTS || ::MoveFileExW(from.c_str(), to.c_str(), 0) ||
           ::GetLastError() == ERROR_ALREADY_EXISTS || noted();
}

void remove(const std::string& path) noexcept { ::DeleteFileW(wide(path).c_str()); }

bool lock(int file) {
    // A byte where no contents are: what is locked nobody else can read.
    OVERLAPPED at = place(int64_t{1} << 62);
    return ::LockFileEx(handle_of(file), LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1,
                        0, &at) ||
           noted();
}

}  // namespace fastload::files
