#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_patch_embed;
const OpClass op_patch_embed = {.id = "patch_embed", .title = "patch embedding"};
#endif
