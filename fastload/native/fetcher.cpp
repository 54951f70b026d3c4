#include "fetcher.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "curl.hpp"
#include "pool.hpp"
#include "sockets.hpp"

namespace fastload {
namespace {

// Bytes of memory for bodies that are kept for later ones: 256 requests at once of 256 kB.
constexpr size_t kMostKept = size_t{64} << 20;
// Of an answer of unknown length, and of one that says more than the second.
constexpr size_t kFirstMemory = size_t{64} << 10;
constexpr int64_t kMostAtOnce = int64_t{64} << 20;
// Bytes of new memory whose pages are asked for by one call. A fault for each of the 27 pages of
// 110 kB takes 12 to 22 us more (Zen 4, Linux 6.18).
constexpr size_t kPagesAtOnce = size_t{256} << 10;
// Bytes of the words of an answer that is no object.
constexpr size_t kWords = 4096;
// Bytes that libcurl reads at a time.
constexpr long kReadAtOnce = 32L << 10;
// Seconds without work after which the thread ends.
constexpr double kIdle = 1.0;
// Connections that are kept open.
constexpr long kConnections = 256;
constexpr int kMostRedirects = 10;

double now() {
    using namespace std::chrono;
    return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// Sizes of memory: four to each power of two.
size_t rounded(size_t size) {
    size = std::max(size, size_t{4096});
    size_t step = 1;
    while (step * 8 <= size) step *= 2;
    return (size + step - 1) / step * step;
}

// Has the system give these bytes pages of memory, of which those that are there stay as they are.
// Without effect before Linux 5.14: each page is then given when it is first written to.
void give_pages(uint8_t* begin, uint8_t* end) {
#ifdef __linux__
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
    static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    // Whole pages: what lies beside them is somebody else's.
    const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page,
                    last = reinterpret_cast<uintptr_t>(end) / page * page;
    if (first < last) (void)::madvise(reinterpret_cast<void*>(first), last - first, kPopulateWrite);
#else
    (void)begin, (void)end;
#endif
}

bool is_sound(const Answer& answer, const FetchRequest& request) {
    const AnswerHead& head = answer.head;
    if (!answer.ok() || head.odd) return false;
    const int64_t whole = head.status == 206 ? head.total : head.length,
                  wanted = request.length >= 0 ? request.length : whole - request.start;
    if (static_cast<int64_t>(answer.body.size()) != wanted) return false;
    if (!request.is_part() && !head.checksums.empty()) return false;
    const int64_t version = whole < 0 ? 0 : version_of(whole, head.etag);
    return version != 0 && (request.version == 0 || request.version == version);
}

}  // namespace

// -- Memory ---------------------------------------------------------------------------------------

struct BodyMemory::Blocks {
    struct Free {
        std::vector<uint8_t*> blocks;
        uint64_t asked = 0;  // when this size was asked for last, a number that grows
    };

    // Room for a block of this size that comes back: of sizes that were asked for before it, the
    // longest ago first, blocks are freed. Whether there is. (A training that begins with short
    // ranges and goes on with long ones would else keep short ones for ever, and get new pages for
    // each long one.)
    bool has_room(size_t size) {
        while (kept + size > kMostKept) {
            auto oldest = free.end();
            for (auto one = free.begin(); one != free.end(); ++one)
                if (!one->second.blocks.empty() &&
                    (oldest == free.end() || one->second.asked < oldest->second.asked))
                    oldest = one;
            if (oldest == free.end() || oldest->second.asked >= free[size].asked) return false;
            std::free(oldest->second.blocks.back());
            oldest->second.blocks.pop_back();
            kept -= oldest->first;
        }
        return true;
    }

    std::mutex mutex;
    std::map<size_t, Free> free;  // by size
    size_t kept = 0;              // bytes
    uint64_t asked = 0;
};

BodyMemory::BodyMemory() : blocks_(std::make_unique<Blocks>()), owner_(current_process()) {}

BodyMemory::~BodyMemory() {
    if (owner_ != current_process()) {
        (void)blocks_.release();  // its mutex may be held for ever
        return;
    }
    for (auto& [size, free] : blocks_->free)
        for (uint8_t* block : free.blocks) std::free(block);
}

uint8_t* BodyMemory::take(size_t& size, bool& is_new) {
    size = rounded(size);
    is_new = false;
    if (owner_ == current_process()) {
        const std::lock_guard<std::mutex> lock(blocks_->mutex);
        Blocks::Free& free = blocks_->free[size];
        free.asked = ++blocks_->asked;
        if (!free.blocks.empty()) {
            uint8_t* block = free.blocks.back();
            free.blocks.pop_back();
            blocks_->kept -= size;
            return block;
        }
    }
    auto* block = static_cast<uint8_t*>(std::malloc(size));
    if (block == nullptr) throw std::bad_alloc();
    is_new = true;
    return block;
}

void BodyMemory::give_back(uint8_t* memory, size_t size) noexcept {
    if (owner_ == current_process()) {
        const std::lock_guard<std::mutex> lock(blocks_->mutex);
        try {
            if (blocks_->has_room(size)) {
                blocks_->free[size].blocks.push_back(memory);
                blocks_->kept += size;
                return;
            }
        } catch (const std::bad_alloc&) {
        }
    }
    std::free(memory);
}

Body& Body::operator=(Body&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    std::swap(size_, other.size_);
    std::swap(paged_, other.paged_);
    return *this;
}

Body::~Body() {
    if (data_ != nullptr) memory_->give_back(data_, capacity_);
}

void Body::grow(BodyMemory& memory, size_t least) {
    if (capacity_ >= static_cast<size_t>(kMostAtOnce)) {
        // Of so much the system moves the pages: twice the bytes are in memory at no time.
        const size_t size = rounded(least);
        void* moved = std::realloc(data_, size);
        if (moved == nullptr) throw std::bad_alloc();
        data_ = static_cast<uint8_t*>(moved);
        capacity_ = size;
        return;
    }
    size_t capacity = least;
    bool is_new;
    uint8_t* data = memory.take(capacity, is_new);
    paged_ = is_new ? 0 : capacity;
    if (data_ != nullptr) {
        std::memcpy(data, data_, size_);
        memory_->give_back(data_, capacity_);
    }
    memory_ = memory.shared_from_this();
    data_ = data;
    capacity_ = capacity;
}

void Body::append(BodyMemory& memory, const char* data, size_t size, int64_t expected) {
    if (size > capacity_ - size_) {
        const auto whole = static_cast<size_t>(std::clamp<int64_t>(expected, 0, kMostAtOnce));
        grow(memory, std::max({kFirstMemory, whole, size_ + size, size_ + size_ / 2}));
    }
    if (size_ + size > paged_) {
        // No more than soon comes: who says how long an object is may not send it.
        const size_t soon = std::min(capacity_, size_ + size + kPagesAtOnce);
        give_pages(data_ + std::min(size_, paged_), data_ + soon);
        paged_ = soon;
    }
    std::memcpy(data_ + size_, data, size);
    size_ += size;
}

// -- A call ---------------------------------------------------------------------------------------

std::vector<Answer> Fetch::take(size_t least, double seconds, bool together) {
    std::unique_lock<std::mutex> lock(mutex_);
    needed_ = least;
    const bool enough = changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                          [&] { return answers_.size() >= least; });
    needed_ = 0;
    const auto is_right = [](const Answer& answer) { return answer.sound; };
    if (together && !enough && std::all_of(answers_.begin(), answers_.end(), is_right)) return {};
    return std::exchange(answers_, {});
}

std::vector<Answer> Fetch::take(size_t least, double seconds) {
    return take(least, seconds, false);
}

std::vector<Answer> Fetch::take_together(size_t least, double seconds) {
    return take(least, seconds, true);
}

std::vector<std::pair<int, double>> Fetch::waiting(double longer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::pair<int, double>> found;
    const double at = now();
    for (const auto& [row, when] : sent_)
        if (at - when >= longer) found.emplace_back(row, at - when);
    return found;
}

void Fetch::put(Answer answer) {
    bool enough;  // woken for each answer, a thread would take longer to wake than to use it
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto same = [&](const auto& one) { return one.first == answer.row; };
        const auto at = std::find_if(sent_.begin(), sent_.end(), same);
        if (at != sent_.end()) sent_.erase(at);
        answers_.push_back(std::move(answer));
        enough = needed_ > 0 && answers_.size() >= needed_;
    }
    if (enough) changed_.notify_all();
}

// -- The thread -----------------------------------------------------------------------------------

struct Fetcher::State {
    // A request that was sent.
    struct Transfer {
        State* state = nullptr;
        CurlEasy* easy = nullptr;
        std::shared_ptr<Fetch> fetch;
        FetchRequest request;
        Answer answer;
        double began = 0, heard = 0;  // when it was sent; when something came last
        bool out_of_memory = false;
    };
    struct Wanted {
        std::shared_ptr<Fetch> fetch;
        FetchRequest request;
    };

    State(FetchSettings given, std::shared_ptr<BodyMemory> kept)
        : settings(std::move(given)),
          most(settings.limit),
          memory(std::move(kept)),
          curl(*curl_library()) {}

    const uint64_t owner = current_process();
    // Its own: a thread that was given up outlives the Fetcher.
    const FetchSettings settings;
    std::atomic<int> most;  // requests at once
    const std::shared_ptr<BodyMemory> memory;
    const Curl& curl;

    std::mutex mutex;  // protects the members below
    std::condition_variable ended;
    std::thread thread;
    bool running = false, stop = false;
    bool given_up = false;  // whether `close` has left the thread to itself
    std::deque<Wanted> wanted;
    bool waited = false, paced = false;
    int wake[2] = {-1, -1};  // a pipe; what is written there ends a wait

    std::atomic<bool> dropped{false};  // whether a Fetch is over since the last look
    std::atomic<int64_t> connections{0};

    // Of the thread alone, and of nobody while none runs.
    CurlMulti* multi = nullptr;
    CurlList* headers = nullptr;
    std::vector<CurlEasy*> idle;
    std::map<CurlEasy*, std::unique_ptr<Transfer>> sent;
    Sockets sockets;
    bool wakes = false;  // whether it has `wake`
    double timer = std::numeric_limits<double>::infinity();
    double looked = 0;  // when silence was last looked for
    int64_t second = -1;
    double in_second = 0;  // requests that were sent in it

    void start();
    void run() noexcept;
    bool work();
    void send_wanted(double at, double& next);
    bool may_send(double at, double& next);
    void send(Wanted one, double at);
    CurlEasy* easy_for(Transfer& transfer);
    void take_messages();
    void look_for_silence(double at, double& next);
    void finish(CurlEasy* easy, int code, bool answers = true);
    void fail_all();
    void drop_over();
    void wait(double until);
    void release();
    void wake_up() const;

    static size_t on_head(char* data, size_t, size_t size, void* transfer);
    static size_t on_body(char* data, size_t, size_t size, void* transfer);
    static int on_socket(CurlEasy*, int socket, int what, void* state, void*);
    static int on_timer(CurlMulti*, long milliseconds, void* state);
};

size_t Fetcher::State::on_head(char* data, size_t, size_t size, void* given) {
    auto& transfer = *static_cast<Transfer*>(given);
    transfer.heard = now();
    try {
        read_head_line(data, size, transfer.answer.head);
    } catch (const std::bad_alloc&) {
        transfer.out_of_memory = true;
        return 0;
    }
    return size;
}

size_t Fetcher::State::on_body(char* data, size_t, size_t size, void* given) {
    auto& transfer = *static_cast<Transfer*>(given);
    Answer& answer = transfer.answer;
    const FetchRequest& request = transfer.request;
    transfer.heard = now();
    const bool part = request.is_part();
    const bool object = answer.head.status == 200 || answer.head.status == 206;
    size_t kept = size;
    if (!object) {
        kept = std::min(size, kWords - std::min(kWords, answer.body.size()));
    } else if (part != (answer.head.status == 206) ||
               (part && (answer.head.first != request.start ||
                         (request.length >= 0 &&
                          answer.head.last - answer.head.first >= request.length)))) {
        answer.other_part = true;
        return 0;
    }
    try {
        answer.body.append(*transfer.state->memory, data, kept, object ? answer.head.length : 0);
    } catch (const std::bad_alloc&) {
        transfer.out_of_memory = true;
        return 0;
    }
    return size;
}

int Fetcher::State::on_socket(CurlEasy*, int socket, int what, void* given, void*) {
    auto& all = static_cast<State*>(given)->sockets;
    if (what == kCurlPollRemove) {
        all.remove(socket);
        return 0;
    }
    try {
        all.set(socket, (what & kCurlPollIn) != 0, (what & kCurlPollOut) != 0);
    } catch (const std::system_error&) {  // nothing is heard of this transfer, which ends it
    }
    return 0;
}

int Fetcher::State::on_timer(CurlMulti*, long milliseconds, void* given) {
    static_cast<State*>(given)->timer = milliseconds < 0
                                            ? std::numeric_limits<double>::infinity()
                                            : now() + static_cast<double>(milliseconds) / 1000;
    return 0;
}

void Fetcher::State::wake_up() const {
    const char byte = 0;
    (void)!::write(wake[1], &byte, 1);  // full: it is awake
}

// The mutex is held.
void Fetcher::State::start() {
    if (running) {
        wake_up();
        return;
    }
    if (thread.joinable()) thread.join();  // it has ended
    if (wake[0] < 0) {
        if (::pipe(wake) != 0) throw std::system_error(errno, std::system_category());
        for (const int end : wake) {
            ::fcntl(end, F_SETFL, O_NONBLOCK);
            ::fcntl(end, F_SETFD, FD_CLOEXEC);
        }
    }
    // Signals are for Python's main thread; SIGPIPE is for nobody.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    running = true;
    try {
        thread = std::thread([this] { run(); });
    } catch (...) {
        running = false;
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Fetcher::State::run() noexcept {
#ifdef __linux__
    pthread_setname_np(pthread_self(), "fastload-fetch");
#endif
    double idle_since = now();
    for (;;) {
        bool busy = false, failed = false;
        try {
            busy = work();
        } catch (const std::exception&) {  // of the standard library, for want of memory
            failed = true;
            fail_all();
        }
        const double at = now();
        if (busy) idle_since = at;
        const std::lock_guard<std::mutex> lock(mutex);
        if (stop || (wanted.empty() && sent.empty() && (failed || at - idle_since >= kIdle))) {
            if (stop) {
                wanted.clear();
                while (!sent.empty()) finish(sent.begin()->first, kCurlOk, false);
                release();
            }
            running = false;
            ended.notify_all();
            return;
        }
    }
}

// Sends, waits and receives once. Returns whether there is anything to do.
bool Fetcher::State::work() {
    if (multi == nullptr) {
        multi = curl.multi_init();
        if (multi == nullptr) throw std::bad_alloc();
        curl.multi_setopt(multi, kCurlSocketFunction, &on_socket);
        curl.multi_setopt(multi, kCurlSocketData, this);
        curl.multi_setopt(multi, kCurlTimerFunction, &on_timer);
        curl.multi_setopt(multi, kCurlTimerData, this);
        curl.multi_setopt(multi, kCurlMaxConnects, kConnections);
        for (const std::string& line : settings.headers)
            headers = curl.slist_append(headers, line.c_str());
    }
    if (!wakes) {
        sockets.set(wake[0], true, false);
        wakes = true;
    }
    if (dropped.exchange(false)) drop_over();
    double at = now(), next = sent.empty() ? at + kIdle : std::numeric_limits<double>::infinity();
    send_wanted(at, next);
    look_for_silence(at, next);
    const bool busy = !sent.empty();
    wait(std::min(next, timer));
    int left = 0;
    if (timer <= now()) {
        timer = std::numeric_limits<double>::infinity();
        curl.multi_socket_action(multi, kCurlTimeout, 0, &left);
    }
    take_messages();
    return busy;
}

// Waits for sockets, at most until then, and has libcurl use those that are ready.
void Fetcher::State::wait(double until) {
    const double left = std::clamp(until - now(), 0.0, 3600.0);
    for (const auto& one : sockets.wait(static_cast<int>(std::ceil(left * 1000)))) {
        if (one.socket == wake[0]) {
            char bytes[256];
            while (::read(wake[0], bytes, sizeof bytes) > 0) {
            }
            continue;
        }
        const int can = (one.can_read ? kCurlCanRead : 0) | (one.can_write ? kCurlCanWrite : 0) |
                        (one.has_error ? kCurlHasError : 0);
        int running_now = 0;
        curl.multi_socket_action(multi, one.socket, can, &running_now);
    }
}

void Fetcher::State::send_wanted(double at, double& next) {
    for (;;) {
        Wanted one;
        {
            const std::lock_guard<std::mutex> lock(mutex);
            if (wanted.empty()) return;
            if (sent.size() >= static_cast<size_t>(std::max(1, most.load()))) {
                waited = true;
                return;
            }
            if (!may_send(at, next)) return;
            one = std::move(wanted.front());
            wanted.pop_front();
        }
        send(std::move(one), at);
    }
}

// Whether this second may have one more request; else `next` becomes the next second at the latest.
// The mutex is held.
bool Fetcher::State::may_send(double at, double& next) {
    if (settings.rate <= 0) return true;
    const auto whole = static_cast<int64_t>(at);
    if (whole != second) {
        second = whole;
        in_second = 0;
    }
    if (in_second + 1 > settings.rate) {
        paced = true;
        next = std::min(next, static_cast<double>(whole + 1));
        return false;
    }
    ++in_second;
    return true;
}

CurlEasy* Fetcher::State::easy_for(Transfer& transfer) {
    CurlEasy* easy = nullptr;
    if (!idle.empty()) {
        easy = idle.back();
        idle.pop_back();
    } else {
        easy = curl.easy_init();
        if (easy == nullptr) return nullptr;
        const auto set = [&](CurlOption option, auto value) {
            curl.easy_setopt(easy, option, value);
        };
        set(kCurlNoSignal, 1L);
        set(kCurlWriteFunction, &on_body);
        set(kCurlHeaderFunction, &on_head);
        set(kCurlHttpVersion, kCurlHttp11);
        set(kCurlProtocols, kCurlHttp | kCurlHttps);
        set(kCurlRedirProtocols, kCurlHttp | kCurlHttps);
        set(kCurlMaxRedirects, static_cast<long>(kMostRedirects));
        set(kCurlPathAsIs, 1L);
        set(kCurlBufferSize, kReadAtOnce);
        set(kCurlConnectTimeoutMs, static_cast<long>(settings.connect_ms));
        set(kCurlTimeoutMs, static_cast<long>(settings.answer_ms));
        set(kCurlTcpKeepAlive, 1L);
        set(kCurlSuppressConnectHeaders, 1L);
        set(kCurlQuickExit, 1L);  // unknown before 7.87, which is said by the number returned
        if (!settings.ca_file.empty()) set(kCurlCaInfo, settings.ca_file.c_str());
        if (!settings.ca_folder.empty()) set(kCurlCaPath, settings.ca_folder.c_str());
        if (!settings.proxy.empty()) set(kCurlProxy, settings.proxy.c_str());
        if (!settings.agent.empty()) set(kCurlUserAgent, settings.agent.c_str());
        if (headers != nullptr) set(kCurlHttpHeader, headers);
    }
    const FetchRequest& request = transfer.request;
    std::string range;
    if (request.is_part()) {
        range = std::to_string(request.start) + "-";
        if (request.length >= 0) range += std::to_string(request.start + request.length - 1);
    }
    curl.easy_setopt(easy, kCurlRange, range.empty() ? nullptr : range.c_str());
    curl.easy_setopt(easy, kCurlUrl, request.url.c_str());
    const bool has_token = request.token != nullptr;
    curl.easy_setopt(easy, kCurlHttpAuth, has_token ? kCurlAuthBearer : kCurlAuthBasic);
    curl.easy_setopt(easy, kCurlBearer, has_token ? request.token->c_str() : nullptr);
    curl.easy_setopt(easy, kCurlFollowLocation, has_token ? 0L : 1L);
    curl.easy_setopt(easy, kCurlWriteData, &transfer);
    curl.easy_setopt(easy, kCurlHeaderData, &transfer);
    return easy;
}

void Fetcher::State::send(Wanted one, double at) {
    if (one.fetch->over_.load()) return;
    auto transfer = std::make_unique<Transfer>();
    transfer->state = this;
    transfer->fetch = std::move(one.fetch);
    transfer->request = std::move(one.request);
    transfer->answer.row = transfer->request.row;
    transfer->began = transfer->heard = at;
    CurlEasy* easy = transfer->easy = easy_for(*transfer);
    if (easy == nullptr || curl.multi_add_handle(multi, easy) != 0) {
        if (easy != nullptr) curl.easy_cleanup(easy);
        transfer->answer.code = kCurlFailedInit;
        transfer->fetch->put(std::move(transfer->answer));
        return;
    }
    {
        const std::lock_guard<std::mutex> lock(transfer->fetch->mutex_);
        transfer->fetch->sent_.emplace_back(transfer->request.row, at);
    }
    sent.emplace(easy, std::move(transfer));
}

void Fetcher::State::take_messages() {
    int left = 0;
    while (const CurlMessage* message = curl.multi_info_read(multi, &left)) {
        if (message->kind == kCurlDone) finish(message->easy, message->data.code);
    }
}

// A transfer is over, with libcurl's code; `answers`: whether those who asked get it.
void Fetcher::State::finish(CurlEasy* easy, int code, bool answers) {
    const auto at = sent.find(easy);
    if (at == sent.end()) return;
    const std::unique_ptr<Transfer> transfer = std::move(at->second);
    sent.erase(at);
    long made = 0;
    if (curl.easy_getinfo(easy, kCurlInfoConnects, &made) == kCurlOk) connections += made;
    curl.multi_remove_handle(multi, easy);
    idle.push_back(easy);
    if (!answers) return;
    Answer& answer = transfer->answer;
    answer.code = transfer->out_of_memory ? kCurlOutOfMemory : code;
    if (answer.other_part && answer.code == kCurlWriteError) answer.code = kCurlOk;
    answer.seconds = now() - transfer->began;
    answer.sound = is_sound(answer, transfer->request);
    transfer->fetch->put(std::move(answer));
}

// Ends all transfers and what is still to be sent, for want of memory.
void Fetcher::State::fail_all() {
    while (!sent.empty()) finish(sent.begin()->first, kCurlOutOfMemory);
    std::deque<Wanted> unsent;
    {
        const std::lock_guard<std::mutex> lock(mutex);
        unsent.swap(wanted);
    }
    for (const Wanted& one : unsent) {
        Answer answer;
        answer.row = one.request.row;
        answer.code = kCurlOutOfMemory;
        one.fetch->put(std::move(answer));
    }
}

// Ends transfers that nobody waits for.
void Fetcher::State::drop_over() {
    std::vector<CurlEasy*> over;
    for (const auto& [easy, transfer] : sent)
        if (transfer->fetch->over_.load()) over.push_back(easy);
    for (CurlEasy* easy : over) finish(easy, kCurlOk, false);
}

// Ends transfers of which nothing was heard for too long. `next`: when to look again.
void Fetcher::State::look_for_silence(double at, double& next) {
    if (sent.empty()) return;
    const double most_silent = static_cast<double>(settings.silence_ms) / 1000;
    const double pause = std::min(0.25, most_silent / 4);
    if (at - looked >= pause) {
        looked = at;
        std::vector<CurlEasy*> silent;
        for (const auto& [easy, transfer] : sent)
            if (at - transfer->heard > most_silent) silent.push_back(easy);
        for (CurlEasy* easy : silent) finish(easy, kCurlTimedOut);
    }
    next = std::min(next, looked + pause);
}

// Closes all connections.
void Fetcher::State::release() {
    for (CurlEasy* easy : idle) curl.easy_cleanup(easy);
    idle.clear();
    if (multi != nullptr) curl.multi_cleanup(multi);
    multi = nullptr;
    if (headers != nullptr) curl.slist_free_all(headers);
    headers = nullptr;
    sockets.clear();
    wakes = false;
    timer = std::numeric_limits<double>::infinity();
}

// -- What others call -----------------------------------------------------------------------------

bool Fetcher::available() { return curl_library() != nullptr; }

std::string Fetcher::version() {
    const Curl* curl = curl_library();
    return curl == nullptr ? "" : curl->version();
}

std::string Fetcher::words(int code) {
    const Curl* curl = curl_library();
    return curl == nullptr ? "" : curl->easy_strerror(code);
}

Fetcher::Fetcher(FetchSettings settings)
    : settings_(std::move(settings)), memory_(std::make_shared<BodyMemory>()), state_(nullptr) {
    if (!available()) throw std::runtime_error("libcurl.so.4 is not here, or older than 7.62");
    state_ = new State(settings_, memory_);
}

Fetcher::~Fetcher() {
    State* const mine = state_.load();
    if (mine->owner != current_process()) return;  // the parent's: left as it is, as in `state`
    close(60.0);
    {
        const std::lock_guard<std::mutex> lock(mine->mutex);
        if (mine->given_up) return;  // its thread uses it
    }
    for (const int end : mine->wake)
        if (end >= 0) ::close(end);
    delete mine;
}

Fetcher::State& Fetcher::state() {
    State* found = state_.load();
    if (found->owner == current_process()) return *found;
    // The first use in a forked child: the connections of the parent are not this process's, and
    // its locks may be held. They are left as they are.
    auto made = std::make_unique<State>(settings_, std::make_shared<BodyMemory>());
    made->most = found->most.load();
    if (state_.compare_exchange_strong(found, made.get())) return *made.release();
    return *found;
}

void Fetcher::ask(const std::shared_ptr<Fetch>& fetch, std::vector<FetchRequest> requests) {
    State& here = state();
    std::unique_lock<std::mutex> lock(here.mutex);
    here.ended.wait(lock, [&] { return !here.stop || here.given_up; });
    if (here.given_up) throw std::runtime_error("it was closed, and its thread has not ended yet");
    for (FetchRequest& request : requests) here.wanted.push_back({fetch, std::move(request)});
    here.start();
}

void Fetcher::drop(const std::shared_ptr<Fetch>& fetch) {
    State& here = state();
    const std::lock_guard<std::mutex> lock(here.mutex);
    fetch->over_ = true;
    here.dropped = true;
    const auto of_it = [&](const State::Wanted& one) { return one.fetch == fetch; };
    here.wanted.erase(std::remove_if(here.wanted.begin(), here.wanted.end(), of_it),
                      here.wanted.end());
    if (here.running) here.wake_up();
}

void Fetcher::set_limit(int limit) { state().most = limit; }

bool Fetcher::waited() {
    State& here = state();
    const std::lock_guard<std::mutex> lock(here.mutex);
    return std::exchange(here.waited, false);
}

bool Fetcher::paced() {
    State& here = state();
    const std::lock_guard<std::mutex> lock(here.mutex);
    return here.paced;
}

bool Fetcher::running() {
    State& here = state();
    const std::lock_guard<std::mutex> lock(here.mutex);
    return here.running;
}

int64_t Fetcher::connections() { return state().connections; }

void Fetcher::close(double seconds) {
    State& here = state();
    std::unique_lock<std::mutex> lock(here.mutex);
    if (here.given_up) return;
    if (!here.running) {
        if (here.thread.joinable()) here.thread.join();
        here.release();
        return;
    }
    here.stop = true;
    here.wake_up();
    if (seconds > 0 && here.ended.wait_for(lock, std::chrono::duration<double>(seconds),
                                           [&] { return !here.running; })) {
        here.stop = false;
        if (here.thread.joinable()) here.thread.join();  // else another one that closes did
    } else {
        here.given_up = true;
        here.thread.detach();
    }
    here.ended.notify_all();
}

}  // namespace fastload
