// A driver for compilers without libFuzzer: mutates the files of a corpus, reproducibly.
//
//     fuzz_decode CORPUS [inputs=200000] [seed=0]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

void mutate(Input& input, const std::vector<Input>& corpus, std::mt19937_64& random) {
    auto below = [&](size_t limit) {
        return limit == 0 ? size_t{0} : static_cast<size_t>(random() % limit);
    };
    switch (below(7)) {
        case 0:  // a bit
            input[below(input.size())] ^= static_cast<uint8_t>(1u << below(8));
            break;
        case 1:  // a byte
            input[below(input.size())] = static_cast<uint8_t>(random());
            break;
        case 2:  // a byte of the headers
            input[below(std::min<size_t>(input.size(), 700))] = static_cast<uint8_t>(random());
            break;
        case 3:  // cut off
            input.resize(std::max<size_t>(below(input.size()), 1));
            break;
        case 4: {  // a marker
            const size_t at = below(input.size());
            input[at] = 0xff;
            if (at + 1 < input.size()) input[at + 1] = static_cast<uint8_t>(0xc0 + below(64));
            break;
        }
        case 5: {  // a piece left out
            const size_t at = below(input.size());
            const size_t length = std::min(below(64), input.size() - at - 1);
            input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                        input.begin() + static_cast<std::ptrdiff_t>(at + length));
            break;
        }
        default: {  // a piece of another file
            const Input& other = corpus[below(corpus.size())];
            const size_t from = below(other.size()), at = below(input.size());
            const size_t length = std::min({below(256), other.size() - from, input.size() - at});
            std::copy_n(other.begin() + static_cast<std::ptrdiff_t>(from), length,
                        input.begin() + static_cast<std::ptrdiff_t>(at));
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: %s CORPUS [inputs=200000] [seed=0]\n", argv[0]);
        return 2;
    }
    std::vector<Input> corpus;
    for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
        std::ifstream file(entry.path(), std::ios::binary);
        Input input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        if (!input.empty()) corpus.push_back(std::move(input));
    }
    if (corpus.empty()) {
        std::fprintf(stderr, "no files in %s\n", argv[1]);
        return 1;
    }
    const long inputs = argc > 2 ? std::atol(argv[2]) : 200000;
    std::mt19937_64 random(argc > 3 ? static_cast<uint64_t>(std::atoll(argv[3])) : 0);
    for (long i = 0; i < inputs; ++i) {
        Input input = corpus[random() % corpus.size()];
        for (size_t n = random() % 4; n-- > 0 && !input.empty();) mutate(input, corpus, random);
        for (size_t at = 0; at < 8 && at < input.size(); ++at)
            input[at] = static_cast<uint8_t>(random());
        LLVMFuzzerTestOneInput(input.data(), input.size());
        if ((i + 1) % 20000 == 0) std::printf("%ld inputs\n", i + 1), std::fflush(stdout);
    }
    std::printf("%ld inputs, no finding\n", inputs);
    return 0;
}
