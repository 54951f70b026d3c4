// Objects of stores, fetched by HTTP: many at once, by one thread (libcurl's multi interface).
//
// A `Fetch` is the requests of one call, whose answers come in the order in which they are whole.
// Each request is made once: which failures pass, and what is asked for again, is decided by those
// who ask (fastload/stores/transfers.py).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "answer_head.hpp"

namespace fastload {

// Memory for the bodies of answers, which is used again: of new memory the system would have to
// clear every page.
class BodyMemory : public std::enable_shared_from_this<BodyMemory> {
  public:
    BodyMemory();
    ~BodyMemory();
    BodyMemory(const BodyMemory&) = delete;
    BodyMemory& operator=(const BodyMemory&) = delete;

    // At least `size` bytes; `size` becomes how many. `is_new`: whether they were never used here.
    // Throws std::bad_alloc.
    uint8_t* take(size_t& size, bool& is_new);
    void give_back(uint8_t* memory, size_t size) noexcept;

  private:
    struct Blocks;
    std::unique_ptr<Blocks> blocks_;
    const uint64_t owner_;
};

// The bytes of a body.
class Body {
  public:
    Body() = default;
    Body(Body&& other) noexcept { *this = std::move(other); }
    Body& operator=(Body&& other) noexcept;
    ~Body();

    // Throws std::bad_alloc.
    void append(BodyMemory& memory, const char* data, size_t size, int64_t expected);

    const uint8_t* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    void grow(BodyMemory& memory, size_t least);

    std::shared_ptr<BodyMemory> memory_;
    uint8_t* data_ = nullptr;
    size_t capacity_ = 0, size_ = 0;
    size_t paged_ = 0;  // bytes, from the first on, that have pages of memory
};

struct FetchRequest {
    int row = 0;
    std::string url;      // may have a signature in it: no message shows it
    int64_t start = 0;    // the first byte
    int64_t length = -1;  // bytes; -1: all from `start` on
    int64_t version = 0;  // which the object must have (`version_of`); 0: any
    // Goes with the request (`Authorization: Bearer`), which then follows no redirect; null: none.
    std::shared_ptr<const std::string> token;

    bool is_part() const { return start > 0 || length >= 0; }
};

// What came of a request. The bytes are those that were asked for where `ok`; of another status
// they are the first 4 KiB of the words that came with it.
struct Answer {
    // libcurl's number of what went wrong (CurlCode); 0: an answer came, of whatever status.
    int code = 0;
    // All of the object came where a part was asked for, or another part.
    bool other_part = false;
    int row = 0;
    double seconds = 0;  // from when it was sent
    AnswerHead head;
    Body body;
    // Whether it has what was asked for, of the right version, and no checksum to compare its bytes
    // with. Where it is not, those who asked find out why.
    bool sound = false;

    bool ok() const {
        return code == 0 && !other_part && (head.status == 200 || head.status == 206);
    }
};

class Fetch {
  public:
    // Waits until at least `least` answers are there, or so many seconds are over, and takes all.
    // One thread at a time.
    std::vector<Answer> take(size_t least, double seconds);
    // As `take`, but none where the time is over and all that are there are sound: who waits then
    // looks only whether to wait on.
    std::vector<Answer> take_together(size_t least, double seconds);
    // (row, seconds since it was sent) of requests that were sent longer ago, and have no answer.
    std::vector<std::pair<int, double>> waiting(double longer = 0);

  private:
    friend class Fetcher;
    void put(Answer answer);
    std::vector<Answer> take(size_t least, double seconds, bool together);

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Answer> answers_;
    size_t needed_ = 0;                         // how many answers somebody waits for
    std::vector<std::pair<int, double>> sent_;  // (row, when) [seconds of a steady clock]
    std::atomic<bool> over_{false};
};

struct FetchSettings {
    int64_t connect_ms = 10'000;     // longest time for a connection
    int64_t silence_ms = 15'000;     // between two pieces of an answer
    int64_t answer_ms = 60'000;      // for a whole answer
    std::string ca_file, ca_folder;  // of certificates that are trusted; empty: the system's
    std::string proxy;  // for all requests; empty: what libcurl reads in the environment
    std::string agent;
    std::vector<std::string> headers;  // of every request: "Name: value"
    int limit = 32;                    // requests at once
    double rate = 0;                   // requests a second, at most; 0: any
};

// Any thread may call. The thread that fetches is started by the first request, ends when there has
// been nothing to do for a second, and starts again; connections stay open meanwhile. A forked
// child has a thread and connections of its own.
class Fetcher {
  public:
    // Throws std::runtime_error where libcurl is not here.
    explicit Fetcher(FetchSettings settings);
    ~Fetcher();
    Fetcher(const Fetcher&) = delete;
    Fetcher& operator=(const Fetcher&) = delete;

    static bool available();
    // Such as "libcurl/7.88.1 OpenSSL/3.0.19"; empty where it is not here.
    static std::string version();
    // libcurl's words for a code.
    static std::string words(int code);

    // Makes requests after those that were given before. Throws std::system_error: the system has
    // no thread, or no pipe. std::runtime_error: `close` has given
    // up its thread.
    void ask(const std::shared_ptr<Fetch>& fetch, std::vector<FetchRequest> requests);
    // Nobody waits for this any longer: what was not sent is not, connections in use are closed.
    void drop(const std::shared_ptr<Fetch>& fetch);
    // Changes how many requests are made at once.
    void set_limit(int limit);
    // Whether a request had to wait for others since the last call.
    bool waited();
    // Whether requests ever waited, so that no second has more than `rate`.
    bool paced();
    // Whether the thread runs.
    bool running();
    // How many connections were made so far, in this process.
    int64_t connections();
    // Drops all requests, which get no answer, closes the connections and ends the thread; gives it
    // up after so many seconds (0: at once). A later `ask` starts again.
    void close(double seconds);

  private:
    struct State;
    State& state();

    const FetchSettings settings_;
    std::shared_ptr<BodyMemory> memory_;
    std::atomic<State*> state_;
};

}  // namespace fastload
