// The bindings of what fetches objects from stores.
#include <algorithm>

#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "fetcher.hpp"

namespace fastload {

using namespace nb::literals;

namespace {

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

void ask(Fetcher& self, const std::shared_ptr<Fetch>& fetch, const std::vector<int>& rows,
         const std::vector<std::string>& urls, const std::vector<int64_t>& starts,
         const std::vector<int64_t>& lengths, const std::vector<int64_t>& versions,
         const std::string& token) {
    require(rows.size() == urls.size() && rows.size() == starts.size() &&
                rows.size() == lengths.size() &&
                (versions.empty() || rows.size() == versions.size()),
            "rows, urls, starts, lengths and versions differ in length");
    require(token.find_first_of("\r\n") == std::string::npos, "a token is one line");
    const auto shared = token.empty() ? nullptr : std::make_shared<const std::string>(token);
    std::vector<FetchRequest> requests;
    requests.reserve(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        require(starts[i] >= 0 && lengths[i] != 0 &&
                    starts[i] <= INT64_MAX - std::max<int64_t>(lengths[i], 0),
                "ranges from 0 on, of a byte and more, are needed");
        requests.push_back({rows[i], urls[i], starts[i], lengths[i] < 0 ? -1 : lengths[i],
                            versions.empty() ? 0 : versions[i], shared});
    }
    WithoutGil released;
    self.ask(fetch, std::move(requests));
}

std::vector<Answer> take(Fetch& self, size_t least, double seconds) {
    WithoutGil released;
    return self.take(least, seconds);
}

// Answers that are sound: the rows of their requests, their bodies as views, and the seconds that
// they took; and the others.
using Taken = std::tuple<std::vector<int>, nb::list, std::vector<double>, std::vector<Answer>>;

Taken take_sound(Fetch& self, size_t least, double seconds) {
    std::vector<Answer> answers;
    {
        WithoutGil released;
        answers = self.take_together(least, seconds);
    }
    Taken taken;
    auto& [rows, bodies, times, others] = taken;
    for (Answer& answer : answers) {
        if (!answer.sound) {
            others.push_back(std::move(answer));
            continue;
        }
        rows.push_back(answer.row);
        times.push_back(answer.seconds);
        const nb::object body = nb::cast(std::move(answer.body));
        bodies.append(nb::steal(PyMemoryView_FromObject(body.ptr())));
    }
    return taken;
}

// `memoryview(body)` is of the memory that the body keeps.
int give_buffer(PyObject* self, Py_buffer* buffer, int flags) {
    static uint8_t nothing = 0;
    const Body* body = nb::inst_ptr<Body>(nb::handle(self));
    auto* data = body->size() > 0 ? const_cast<uint8_t*>(body->data()) : &nothing;
    return PyBuffer_FillInfo(buffer, self, data, static_cast<Py_ssize_t>(body->size()), 1, flags);
}

PyType_Slot body_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&give_buffer)}, {0, nullptr}};

// The body, which the answer keeps.
nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> body_of(const Answer& answer) {
    return {answer.body.data(), {answer.body.size()}, nb::find(answer)};
}

void make_fetcher(Fetcher* self, double connect, double silence, double answer, std::string ca_file,
                  std::string ca_folder, std::string proxy, std::string agent,
                  std::vector<std::string> headers, int limit, double rate) {
    const auto milliseconds = [](double seconds) { return static_cast<int64_t>(seconds * 1000); };
    new (self) Fetcher({milliseconds(connect), milliseconds(silence), milliseconds(answer),
                        std::move(ca_file), std::move(ca_folder), std::move(proxy),
                        std::move(agent), std::move(headers), limit, rate});
}

}  // namespace

void bind_fetch(nb::module_& m) {
    nb::class_<Body>(m, "Body", nb::type_slots(body_slots));
    nb::class_<Answer>(m, "Answer")
        .def_ro("row", &Answer::row)
        .def_ro("code", &Answer::code)
        .def_ro("other_part", &Answer::other_part)
        .def_ro("seconds", &Answer::seconds)
        .def_ro("sound", &Answer::sound)
        .def_prop_ro("ok", &Answer::ok)
        .def_prop_ro("size", [](const Answer& self) { return self.body.size(); })
        .def_prop_ro("status", [](const Answer& self) { return self.head.status; })
        .def_prop_ro("length", [](const Answer& self) { return self.head.length; })
        .def_prop_ro("total", [](const Answer& self) { return self.head.total; })
        .def_prop_ro("odd", [](const Answer& self) { return self.head.odd; })
        .def_prop_ro("etag", [](const Answer& self) { return bytes_of(self.head.etag); })
        .def_prop_ro("modified", [](const Answer& self) { return bytes_of(self.head.modified); })
        .def_prop_ro("retry_after",
                     [](const Answer& self) { return bytes_of(self.head.retry_after); })
        .def_prop_ro("checksums", [](const Answer& self) { return bytes_of(self.head.checksums); })
        .def_prop_ro("body", &body_of);
    m.def(
        "version_of",
        [](int64_t size, const nb::bytes& etag) {
            return version_of(size, {etag.c_str(), etag.size()});
        },
        "size"_a, "etag"_a);
    nb::class_<Fetch>(m, "Fetch")
        .def(nb::init<>())
        .def("take", &take, "least"_a, "seconds"_a)
        .def("take_sound", &take_sound, "least"_a, "seconds"_a)
        .def("waiting", &Fetch::waiting, "longer"_a = 0.0);
    nb::class_<Fetcher>(m, "Fetcher")
        .def("__init__", &make_fetcher, "connect"_a, "silence"_a, "answer"_a, "ca_file"_a = "",
             "ca_folder"_a = "", "proxy"_a = "", "agent"_a = "",
             "headers"_a = std::vector<std::string>(), "limit"_a = 32, "rate"_a = 0.0)
        .def_static("version", &Fetcher::version)
        .def_static("words", &Fetcher::words, "code"_a)
        .def("ask", &ask, "fetch"_a, "rows"_a, "urls"_a, "starts"_a, "lengths"_a,
             "versions"_a = std::vector<int64_t>(), "token"_a = "")
        .def("drop", &Fetcher::drop, "fetch"_a, nb::call_guard<WithoutGil>())
        .def("set_limit", &Fetcher::set_limit, "limit"_a)
        .def("waited", &Fetcher::waited)
        .def_prop_ro("paced", &Fetcher::paced)
        .def_prop_ro("running", &Fetcher::running)
        .def_prop_ro("connections", &Fetcher::connections)
        .def("close", &Fetcher::close, "seconds"_a, nb::call_guard<WithoutGil>());
}

}  // namespace fastload
