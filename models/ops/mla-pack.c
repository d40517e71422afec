#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_mla_pack;
const OpClass op_mla_pack = {.id = "mla_pack", .title = "MLA key assembly"};
#endif
