#include "models/op.h"
#include "models/real.h"

#if REAL_HAS_CLASS
extern const OpClass op_combine;
const OpClass op_combine = {.id = "combine", .title = "combine all-to-all"};
#endif
