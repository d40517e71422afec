#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_gdn;
const OpClass op_gdn = {.id = "gdn", .title = "gated delta net"};
#endif
