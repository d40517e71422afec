#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_attnres;
const OpClass op_attnres = {.id = "attnres", .title = "AttnRes mix"};
#endif
