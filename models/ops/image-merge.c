#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_image_merge;
const OpClass op_image_merge = {.id = "image_merge", .title = "image merge"};
#endif
