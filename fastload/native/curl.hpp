// What the core calls of libcurl, which is opened at run time by its name (libcurl.so.4): wheels
// carry no TLS, and nothing of libcurl is needed to build the core. Its manual promises that names,
// numbers and types stay as they are while the number in the file's name does ("ABI - how libcurl
// treats it"). The numbers are those of <curl/curl.h> and <curl/multi.h>.
#pragma once

#include <cstddef>

namespace fastload {

struct CurlEasy;   // a transfer: CURL
struct CurlMulti;  // transfers that are made together, and their connections: CURLM
struct CurlList;   // lines of a header: struct curl_slist

enum CurlOption : int {
    kCurlWriteData = 10001,
    kCurlUrl = 10002,
    kCurlProxy = 10004,
    kCurlRange = 10007,
    kCurlUserAgent = 10018,
    kCurlHttpHeader = 10023,
    kCurlHeaderData = 10029,
    kCurlCaInfo = 10065,
    kCurlCaPath = 10097,
    kCurlNoProxy = 10177,
    kCurlBearer = 10220,  // CURLOPT_XOAUTH2_BEARER: a token, which needs kCurlHttpAuth
    kCurlWriteFunction = 20011,
    kCurlHeaderFunction = 20079,
    kCurlFollowLocation = 52,
    kCurlMaxRedirects = 68,
    kCurlHttpVersion = 84,
    kCurlHttpAuth = 107,
    kCurlBufferSize = 98,
    kCurlNoSignal = 99,
    kCurlTimeoutMs = 155,
    kCurlConnectTimeoutMs = 156,
    kCurlProtocols = 181,       // a sum of kCurlHttp and kCurlHttps
    kCurlRedirProtocols = 182,  // as above
    kCurlTcpKeepAlive = 213,
    kCurlPathAsIs = 234,
    kCurlSuppressConnectHeaders = 265,
    kCurlQuickExit = 322,  // from 7.87 on: do not wait for the thread that resolves names
};
enum CurlMultiOption : int {
    kCurlSocketData = 10002,
    kCurlTimerData = 10005,
    kCurlSocketFunction = 20001,
    kCurlTimerFunction = 20004,
    kCurlMaxConnects = 6,
};
enum CurlInfo : int { kCurlInfoConnects = 0x200000 + 26 };  // a long: connections that were made
enum CurlCode : int {
    kCurlOk = 0,
    kCurlFailedInit = 2,
    kCurlWriteError = 23,
    kCurlOutOfMemory = 27,
    kCurlTimedOut = 28,
};
constexpr long kCurlHttp = 1, kCurlHttps = 2, kCurlHttp11 = 2, kCurlGlobalDefault = 3;
constexpr long kCurlAuthBasic = 1, kCurlAuthBearer = 1 << 6;  // libcurl's own choice: the first
constexpr int kCurlPollIn = 1, kCurlPollOut = 2, kCurlPollRemove = 4;  // what a socket waits for
constexpr int kCurlCanRead = 1, kCurlCanWrite = 2, kCurlHasError = 4;  // what it is ready for
constexpr int kCurlTimeout = -1;                                       // in place of a socket
constexpr int kCurlDone = 1;

// A message about a transfer that is over: struct CURLMsg.
struct CurlMessage {
    int kind;  // kCurlDone
    CurlEasy* easy;
    union {
        void* whatever;
        int code;
    } data;
};

struct Curl {
    int (*global_init)(long);
    const char* (*version)();
    CurlEasy* (*easy_init)();
    int (*easy_setopt)(CurlEasy*, int, ...);
    int (*easy_getinfo)(CurlEasy*, int, ...);
    void (*easy_cleanup)(CurlEasy*);
    const char* (*easy_strerror)(int);
    CurlMulti* (*multi_init)();
    int (*multi_setopt)(CurlMulti*, int, ...);
    int (*multi_add_handle)(CurlMulti*, CurlEasy*);
    int (*multi_remove_handle)(CurlMulti*, CurlEasy*);
    int (*multi_socket_action)(CurlMulti*, int, int, int*);
    CurlMessage* (*multi_info_read)(CurlMulti*, int*);
    int (*multi_cleanup)(CurlMulti*);
    CurlList* (*slist_append)(CurlList*, const char*);
    void (*slist_free_all)(CurlList*);
};

// The library, opened by the first call. Null where there is none, or it is older than 7.62 (2018).
const Curl* curl_library();

}  // namespace fastload
