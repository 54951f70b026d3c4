// The fetcher under stress: a server in threads of this process, with faults, and several threads
// that ask, take, drop and close at once, while others fork.
//
//     stress_fetch threads SECONDS
//     stress_fetch fork CHILDREN
//     stress_fetch handles TIMES    (libcurl has no memory for its handle)
//
// Every body is checked: byte i of /N/K is (i + K) % 251, N bytes in all. Exit status 0 if all was
// right, and 3 where there is no libcurl. For sanitizers see CMakeLists.txt here.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "curl.hpp"
#include "fetcher.hpp"

namespace {

using namespace fastload;

[[noreturn]] void fail(const char* words) {
    std::fprintf(stderr, "%s\n", words);
    std::_Exit(1);
}

uint8_t byte_of(size_t at, size_t key) { return static_cast<uint8_t>((at + key) % 251); }

// Serves a connection until the client closes it, or a fault does. Each seventh answer is cut, and
// each eleventh is 503.
void serve(int connection) {
    static std::atomic<int> count{0};
    std::string got;
    char piece[4096];
    for (;;) {
        size_t end;
        while ((end = got.find("\r\n\r\n")) == std::string::npos) {
            const ssize_t read = ::recv(connection, piece, sizeof piece, 0);
            if (read <= 0) {
                ::close(connection);
                return;
            }
            got.append(piece, static_cast<size_t>(read));
        }
        size_t size = 0, key = 0;
        if (std::sscanf(got.c_str(), "GET /%zu/%zu ", &size, &key) != 2) fail("an odd request");
        got.erase(0, end + 4);
        const int number = count++;
        std::string answer =
            number % 11 == 0
                ? "HTTP/1.1 503 Slow\r\nContent-Length: 4\r\n\r\nslow"
                : "HTTP/1.1 200 OK\r\nETag: \"x\"\r\nContent-Length: " + std::to_string(size) +
                      "\r\n\r\n";
        const bool cut = number % 7 == 0;
        if (number % 11 != 0) {
            const size_t sent = cut ? size / 2 : size;
            for (size_t i = 0; i < sent; ++i) answer += static_cast<char>(byte_of(i, key));
        }
        for (size_t at = 0; at < answer.size();) {
            const ssize_t sent =
                ::send(connection, answer.data() + at, answer.size() - at, MSG_NOSIGNAL);
            if (sent <= 0) break;
            at += static_cast<size_t>(sent);
        }
        if (cut) {
            ::close(connection);
            return;
        }
    }
}

std::string start_server() {
    const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (::bind(listening, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::listen(listening, 128) != 0 ||
        ::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &length) != 0)
        fail("no server");
    std::thread([listening] {
        for (;;) {
            const int connection = ::accept(listening, nullptr, nullptr);
            if (connection >= 0) std::thread(serve, connection).detach();
        }
    }).detach();
    return "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)) + "/";
}

void check(const Answer& answer, size_t size, size_t key) {
    if (!answer.ok()) return;
    if (answer.body.size() != size) fail("a body of another length");
    for (size_t i = 0; i < size; ++i)
        if (answer.body.data()[i] != byte_of(i, key)) fail("a body of other bytes");
}

// Asks for some objects; takes all answers, or drops the call after some. Returns how many were
// right.
int ask_once(Fetcher& fetcher, const std::string& url, std::mt19937& random, bool all) {
    const auto fetch = std::make_shared<Fetch>();
    const size_t count = 1 + random() % 20;
    std::vector<FetchRequest> requests;
    std::vector<size_t> sizes;
    for (size_t i = 0; i < count; ++i) {
        sizes.push_back(1 + random() % 200'000);
        const std::string path = std::to_string(sizes[i]) + "/" + std::to_string(i);
        requests.push_back({static_cast<int>(i), url + path, 0, -1});
    }
    fetcher.ask(fetch, std::move(requests));
    size_t left = count;
    int good = 0;
    for (int waits = 0; left > 0 && waits < 6000; ++waits) {
        for (const Answer& answer : fetch->take(left, 0.01)) {
            const auto row = static_cast<size_t>(answer.row);
            check(answer, sizes[row], row);
            good += answer.ok();
            --left;
        }
        (void)fetch->waiting();
        if (!all && random() % 8 == 0) break;
    }
    if (all && left > 0) fail("an answer is missing");
    fetcher.drop(fetch);
    return good;
}

void threads(const std::string& url, int seconds) {
    FetchSettings settings;
    settings.limit = 8;
    const auto fetcher = std::make_unique<Fetcher>(settings);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::atomic<int> good{0};
    std::vector<std::thread> all;
    std::mutex closing;  // who waits for all answers is not closed meanwhile
    for (unsigned number = 0; number < 6; ++number) {
        all.emplace_back([&, number] {
            std::mt19937 random(number);
            while (std::chrono::steady_clock::now() < until) {
                fetcher->set_limit(static_cast<int>(1 + random() % 30));
                if (number == 0) {
                    const std::lock_guard<std::mutex> lock(closing);
                    if (random() % 4 == 0) fetcher->close(60.0);
                    good += ask_once(*fetcher, url, random, true);
                } else {
                    good += ask_once(*fetcher, url, random, false);
                }
            }
        });
    }
    for (std::thread& thread : all) thread.join();
    if (good == 0) fail("nothing came");
    std::printf("%d objects, %lld connections\n", good.load(),
                static_cast<long long>(fetcher->connections()));
}

void forks(const std::string& url, int children) {
    Fetcher fetcher(FetchSettings{});
    std::atomic<bool> over{false};
    std::thread busy([&] {
        std::mt19937 random(1);
        while (!over) ask_once(fetcher, url, random, true);
    });
    std::mt19937 random(2);
    for (int child = 0; child < children; ++child) {
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 5));
        const pid_t process = ::fork();
        if (process == 0) {
            ask_once(fetcher, url, random, true);
            fetcher.close(60.0);
            std::_Exit(0);
        }
        int status = 0;
        if (::waitpid(process, &status, 0) != process || status != 0) fail("a child failed");
    }
    over = true;
    busy.join();
}

// While libcurl gives no handle each request is answered so, and the thread ends.
void handles(const std::string& url, int times) {
    auto* library = const_cast<Curl*>(curl_library());  // of an object that is not const
    const auto init = library->multi_init;
    Fetcher fetcher(FetchSettings{});
    std::mt19937 random(3);
    for (int time = 0; time < times; ++time) {
        library->multi_init = [] { return static_cast<CurlMulti*>(nullptr); };
        const auto fetch = std::make_shared<Fetch>();
        fetcher.ask(fetch, {{0, url + "9/0", 0, -1}, {1, url + "9/1", 0, -1}});
        std::vector<Answer> answers;
        for (int waits = 0; answers.size() < 2 && waits < 6000; ++waits)
            for (Answer& one : fetch->take(1, 0.01)) answers.push_back(std::move(one));
        if (answers.size() != 2) fail("an answer is missing");
        for (const Answer& one : answers)
            if (one.code != kCurlOutOfMemory || one.sound) fail("another answer");
        for (int waits = 0; fetcher.running() && waits < 6000; ++waits)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (fetcher.running()) fail("the thread tries for ever");
        fetcher.drop(fetch);
        library->multi_init = init;
        ask_once(fetcher, url, random, true);
        fetcher.close(60.0);  // the handle goes with it
    }
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) fail("stress_fetch threads SECONDS | fork CHILDREN | handles TIMES");
    if (!Fetcher::available()) return 3;
    const std::string url = start_server();
    if (std::strcmp(words[1], "fork") == 0)
        forks(url, std::atoi(words[2]));
    else if (std::strcmp(words[1], "handles") == 0)
        handles(url, std::atoi(words[2]));
    else
        threads(url, std::atoi(words[2]));
    std::fflush(stdout);
    std::_Exit(0);
}
