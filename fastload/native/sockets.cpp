#include "sockets.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <unistd.h>

#ifdef __linux__
#include <sys/epoll.h>
#else
#include <poll.h>
#endif

namespace fastload {

#ifdef __linux__

namespace {

// Of more that are ready the others come at the next wait.
constexpr int kMostReady = 64;

}  // namespace

void Sockets::set(int socket, bool read, bool write) {
    if (epoll_ < 0) epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event = {};
    event.events = (read ? uint32_t{EPOLLIN} : 0) | (write ? uint32_t{EPOLLOUT} : 0);
    event.data.fd = socket;
    if (epoll_ < 0 || (::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket, &event) != 0 &&
                       ::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) != 0))
        throw std::system_error(errno, std::system_category());
}

void Sockets::remove(int socket) noexcept {
    epoll_event unused = {};
    if (epoll_ >= 0) (void)::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, &unused);
}

const std::vector<Sockets::Ready>& Sockets::wait(int milliseconds) {
    epoll_event events[kMostReady];
    const int found = ::epoll_wait(epoll_, events, kMostReady, milliseconds);
    ready_.clear();
    for (int i = 0; i < found; ++i) {
        const uint32_t what = events[i].events;
        ready_.push_back({events[i].data.fd, (what & (EPOLLIN | EPOLLHUP)) != 0,
                          (what & EPOLLOUT) != 0, (what & EPOLLERR) != 0});
    }
    return ready_;
}

void Sockets::clear() noexcept {
    if (epoll_ >= 0) ::close(epoll_);
    epoll_ = -1;
}

#else

void Sockets::set(int socket, bool read, bool write) {
    remove(socket);
    watched_.push_back({socket, read, write});
}

void Sockets::remove(int socket) noexcept {
    const auto same = [socket](const Watched& one) { return one.socket == socket; };
    watched_.erase(std::remove_if(watched_.begin(), watched_.end(), same), watched_.end());
}

const std::vector<Sockets::Ready>& Sockets::wait(int milliseconds) {
    std::vector<pollfd> asked;
    for (const Watched& one : watched_)
        asked.push_back({one.socket,
                         static_cast<short>((one.read ? POLLIN : 0) | (one.write ? POLLOUT : 0)),
                         0});
    const int found = ::poll(asked.data(), static_cast<nfds_t>(asked.size()), milliseconds);
    ready_.clear();
    for (const pollfd& one : asked) {
        if (found <= 0 || one.revents == 0) continue;
        ready_.push_back({one.fd, (one.revents & (POLLIN | POLLHUP)) != 0,
                          (one.revents & POLLOUT) != 0, (one.revents & (POLLERR | POLLNVAL)) != 0});
    }
    return ready_;
}

void Sockets::clear() noexcept { watched_.clear(); }

#endif

}  // namespace fastload
