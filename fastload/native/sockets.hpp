// Sockets that are waited for.
#pragma once

#include <vector>

namespace fastload {

// By epoll on Linux, which looks at those alone that are ready: poll looks at all of them, which
// for 128 requests at once was 15 us a request of 110 kB. One thread at a time.
class Sockets {
  public:
    struct Ready {
        int socket;
        bool can_read, can_write, has_error;
    };

    Sockets() = default;
    ~Sockets() { clear(); }
    Sockets(const Sockets&) = delete;
    Sockets& operator=(const Sockets&) = delete;

    // Waits for a socket from now on, for other events where it is waited for already. Throws
    // std::system_error where the system can wait for no more.
    void set(int socket, bool read, bool write);
    // Before it is closed; of one that is not waited for nothing happens.
    void remove(int socket) noexcept;
    // Those that are ready after at most so many milliseconds; the next call overwrites them. An
    // end of the stream can be read.
    const std::vector<Ready>& wait(int milliseconds);
    // Waits for none any more.
    void clear() noexcept;

  private:
    std::vector<Ready> ready_;
#ifdef __linux__
    int epoll_ = -1;
#else
    struct Watched {
        int socket;
        bool read, write;
    };
    std::vector<Watched> watched_;
#endif
};

}  // namespace fastload
