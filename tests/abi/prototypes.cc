// The prototypes that cbindgen makes of the functions of the library (prototypes.h), together with the headers: a
// signature that is not the header's is an error of the compiler. names.h has a line SAME(name) for each exported name.
#include <nccl_device.h>
#include <type_traits>

// What no public header has.
struct ncclGinInboxA2AHandle;
struct ncclGinOutboxHandle;

namespace rust {
#include "prototypes.h"
}

// Both names are of one function, and the headers of the device API declare the first only.
#define SAME(name) static_assert(std::is_same<decltype(::name), decltype(rust::p##name)>::value, #name)
#include "names.h"
